"""Who of a group reads which queues.

Every member computes the shares by itself from the same two sorted lists, so all must compute alike, Java clients
included: with n queues and m members, the first n mod m members get one queue more than the others, in one piece each.

Source: RocketMQ AllocateMessageQueueAveragely.
"""

from collections.abc import Iterable

from tandemq.model.message import MessageQueue


def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The share of one member; empty if it is not among them, or there are more members than queues.

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
