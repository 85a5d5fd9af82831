"""Allocation of queues to the members of a consumer group.

Each member computes its own part from the same two sorted lists, so all members, Java clients included, must use the
same rule: with n queues and m members, the first n mod m members get one queue more than the others, each a contiguous
piece of the sorted queues.

Source: RocketMQ AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle, QueryAssignmentProcessor.
"""

from collections.abc import Iterable

from tandemq.model.message import MessageQueue


def allocate_averagely(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues of one member; empty if it is not a member, or if there are more members than queues.

    Queues are sorted by topic, broker name and queue id, members by their ids as Java sorts strings.
    """
    members = sorted_members(client_ids)
    if client_id not in members:
        return []
    ordered = sorted(queues)
    position = members.index(client_id)
    least, rest = divmod(len(ordered), len(members))
    start = position * least + min(position, rest)
    return ordered[start : start + least + (position < rest)]


def allocate_by_circle(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues of one member, where the members take the sorted queues in turns."""
    members = sorted_members(client_ids)
    return sorted(queues)[members.index(client_id) :: len(members)] if client_id in members else []


def allocate_shared(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue], shared: int
) -> list[MessageQueue]:
    """Return the queues that one member pops: its own, and those of the next members, which pop them too.

    Args:
        client_id: the member.
        client_ids: of all members, fewer than `shared` + 1 of which would share all queues.
        queues: of the topic.
        shared: number of next members whose queues it pops.
    """
    members, ordered = sorted_members(client_ids), sorted(queues)
    if client_id not in members or not ordered:
        return []
    position = members.index(client_id)
    if len(members) > len(ordered):
        return [ordered[position % len(ordered)]]
    found: dict[MessageQueue, None] = {}
    for step in range(min(shared, len(members) - 1) + 1):
        member = members[(position + step) % len(members)]
        found.update(dict.fromkeys(allocate_averagely(member, members, ordered)))
    return list(found)


def sorted_members(client_ids: Iterable[str]) -> list[str]:
    """Return the members in the order of Java's strings, without duplicates."""
    return sorted(set(client_ids), key=lambda text: text.encode("utf-16-be", "surrogatepass"))
