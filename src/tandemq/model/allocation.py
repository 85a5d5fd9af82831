"""Allocation of queues to the members of a consumer group.

Each member computes its own part from the same two sorted lists, so all members, Java clients included, must use the
same rule: with n queues and m members, the first n mod m members get one queue more than the others, each a contiguous
piece of the sorted queues.

Source: RocketMQ AllocateMessageQueueAveragely.
"""

from collections.abc import Iterable

from tandemq.model.message import MessageQueue


def allocate_averagely(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues of one member; empty if it is not a member, or if there are more members than queues.

    Queues are sorted by topic, broker name and queue id, members by their ids as Java sorts strings.
    """
    members = sorted(set(client_ids), key=lambda text: text.encode("utf-16-be", "surrogatepass"))
    if client_id not in members:
        return []
    ordered = sorted(queues)
    position = members.index(client_id)
    least, rest = divmod(len(ordered), len(members))
    start = position * least + min(position, rest)
    return ordered[start : start + least + (position < rest)]
