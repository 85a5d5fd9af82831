"""The role that the settings give (`brokerRole`), for the whole life of the broker."""

from tandemq.boundary import Event, Now, Turn
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import Report
from tandemq.broker.kernel.serving import NO_LIMIT, Registered, SendRefusal, Serving
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

MASTER_ID = 0
SLAVE = SendRefusal(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: messages go to its master")


class StaticRole:
    """ASYNC_MASTER, SYNC_MASTER or SLAVE, as configured; a `BrokerRole`. There is no other member to agree with."""

    def __init__(self, kernel: Kernel) -> None:
        """Replication begins by `begin`."""
        self._replication = kernel.features.find(Replication)
        self._current = kernel.current
        self._config: BrokerConfig | None = None
        """The settings that the verdict was computed from."""
        self._facts: object = None
        """Other inputs from which the verdict was computed."""
        self._serving = Serving(is_master=False)

    def begin(self, now: Now) -> None:
        """Begin replication.

        Raises:
            StoreError: something could not be saved.
        """
        role = self._current.config.static_role
        self._replication.begin_by_settings(now, is_slave=role == "SLAVE", may_give_up=role != "SYNC_MASTER")

    def serving(self, _now: Now) -> Serving:
        """See `BrokerRole`."""
        config, replication = self._current.config, self._replication
        facts: object = replication.is_tail_awaited
        if self._serving.waits_for_replicas:
            acked = replication.masters.acked_offsets()
            copied = replication.masters.replica_code(acked), replication.masters.copied_offset(acked)
            facts = facts, copied
        if config is not self._config or facts != self._facts:
            self._config, self._facts = config, facts
            self._serving = _serving(config, replication)
        return self._serving

    def report(self, _report: Report, _now: Now) -> int:
        """See `BrokerRole`: nobody is interested."""
        return 0

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """See `BrokerRole`."""

    def on_event(self, _event: Event, _turn: Turn, _now: Now) -> bool:
        """See `BrokerRole`."""
        return False

    def owns(self, _link: int) -> bool:
        """See `BrokerRole`."""
        return False

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """See `BrokerRole`."""

    def tick(self, _turn: Turn, _now: Now) -> "StaticRole":
        """See `BrokerRole`."""
        return self

    def before_copy(self, now: Now) -> None:
        """See `BrokerRole`."""

    def after_commit(self, turn: Turn, now: Now) -> None:
        """See `BrokerRole`."""

    def tables_saved(self, settled: int, error: Exception | None, now: Now) -> None:
        """See `BrokerRole`."""

    def deadline_ms(self) -> None:
        """See `BrokerRole`."""

    def close(self, turn: Turn, now: Now) -> None:
        """See `BrokerRole`."""

    def holds(self, _link: int, _request: Command, _answer: Command) -> bool:
        """See `BrokerRole`."""
        return False

    def drop_link(self, link: int) -> None:
        """See `BrokerRole`."""


def _serving(config: BrokerConfig, replication: Replication) -> Serving:
    is_master, waits = config.static_role != "SLAVE", config.static_role == "SYNC_MASTER"
    code: ResponseCode | None = ResponseCode.SUCCESS
    copied_to = NO_LIMIT
    if waits:
        acked = replication.masters.acked_offsets()
        code, copied_to = replication.masters.replica_code(acked), replication.masters.copied_offset(acked)
    return Serving(
        is_master=is_master,
        sends=None if is_master else SLAVE,
        takes_pulled_commits=config.broker_id == MASTER_ID,
        keeps_offsets=is_master,
        copies_tables=not is_master,
        waits_for_replicas=waits,
        replica_code=code,
        copied_to=copied_to,
        awaits_tail=replication.is_tail_awaited,
        registered=Registered(config.broker_id),
    )
