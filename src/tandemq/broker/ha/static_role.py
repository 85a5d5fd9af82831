"""The role that the settings give (`brokerRole`), for the whole life of the broker."""

from tandemq.broker.context import CurrentConfig
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.pull.processor import PullPath
from tandemq.broker.role import BrokerRole
from tandemq.model.codes import ResponseCode
from tandemq.storage.consume_queue import ConsumeQueue


class StaticRole(BrokerRole):
    """ASYNC_MASTER, SYNC_MASTER or SLAVE, as configured."""

    def __init__(self, masters: MasterSide, pull: PullPath, current: CurrentConfig) -> None:
        """Take the collaborators."""
        self._masters = masters
        self._pull = pull
        self._current = current

    @property
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""
        return self._current.config.static_role != "SLAVE"

    @property
    def waits_for_replicas(self) -> bool:
        """Whether a message is acknowledged only when enough replicas have it."""
        return self._current.config.static_role == "SYNC_MASTER"

    def replica_verdict(self) -> ResponseCode | None:
        """Return the outcome of replicating a message stored now; None if that has to be waited for."""
        return self._masters.replica_verdict()

    def copied_offset(self) -> int:
        """Return the log offset up to which enough replicas hold the log."""
        return self._masters.copied_offset()

    def wake(self, woken: list[ConsumeQueue]) -> None:
        """Answer held pulls of queues that got messages."""
        for queue in woken:
            self._pull.wake(queue)
