"""Changes of the membership of consumer groups."""

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.client_requests import notify
from tandemq.broker.kernel.kernel import Kernel
from tandemq.model.codes import RequestCode
from tandemq.model.topic import retry_topic


def create_retry_topic(kernel: Kernel, name: str, now: Now) -> None:
    """Create the retry topic of a group whose consumers have come, unless there is no such group.

    Raises:
        ProtocolError: the group would be created, and there are too many.
    """
    group = kernel.groups.find(name, now.wall_ms)
    if group is not None and kernel.turn.serving.is_master:
        kernel.topics.create_internal(retry_topic(name), max(1, group.retry_queue_nums), now.wall_ms)


class MembershipNotifier:
    """Notifies the members of consumer groups whose membership changed, so that they rebalance."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._clients = kernel.clients
        self._groups = kernel.groups
        self._filters = kernel.filters

    def notify(self, names: list[str], turn: Turn, now: Now) -> None:
        """Notify all members of these groups, unless a group's configuration forbids it."""
        for name in names:
            group = self._clients.consumers.get(name)
            if group is None:
                self._filters.follow(name, {}, now.wall_ms)
            config = self._groups.table.get(name)
            if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
                continue
            for link in group.members:
                notify(link, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}, turn)
