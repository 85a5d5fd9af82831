"""Changes of the membership of consumer groups.

All members are notified of a change, so a group of which many members come or leave together would need a number of
notices that grows with its square. They are gathered until the end of the turn, and sent to a part of the members in
each turn.
"""

from collections.abc import Iterator
from itertools import islice

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.topic import retry_topic

NOTIFIED_AT_ONCE = 256
"""Maximum number of members that are notified in one turn: each on a connection of its own."""
PAUSE_MS = 1
"""Minimum time until the next members are notified."""


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
        self._schedule = kernel.schedule
        self._turn = kernel.turn
        self._changed: dict[str, None] = {}
        """Groups that changed, and whose members are not being notified yet."""
        self._notices = self._all_notices()
        self._is_scheduled = False

    def notify(self, names: list[str], now: Now) -> None:
        """Notify all members of these groups, the first ones in this turn, unless a group forbids that."""
        for name in names:
            if name in self._clients.consumers:
                self._changed[name] = None
            else:
                self._filters.follow(name, {}, now.wall_ms)
        if self._changed and not self._is_scheduled:
            self._is_scheduled = True
            self._schedule.at(now.mono_ms, self._notify_some)

    def _notify_some(self, now: Now) -> None:
        send = self._turn.out.send
        sent = 0
        for link, notice in islice(self._notices, NOTIFIED_AT_ONCE):
            send(link, notice)
            sent += 1
        self._is_scheduled = sent == NOTIFIED_AT_ONCE
        if self._is_scheduled:
            self._schedule.at(now.mono_ms + PAUSE_MS, self._notify_some)
        else:
            self._notices = self._all_notices()

    def _all_notices(self) -> Iterator[tuple[int, bytes]]:
        """Yield the connections to be notified, each with the bytes to send.

        A group that changes meanwhile comes again, behind the others.
        """
        while self._changed:
            names, self._changed = self._changed, {}
            for name in names:
                group, config = self._clients.consumers.get(name), self._groups.table.get(name)
                if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
                    continue
                notice = _notice(name)
                for link in list(group.members):
                    if link in group.members:  # it may have left since the last turn
                        yield link, notice


def _notice(group: str) -> bytes:
    command = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, FLAG_ONEWAY, fields={"consumerGroup": group})
    return encode_command(command)
