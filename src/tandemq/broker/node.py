"""One broker: bytes of connections in, one commit per turn, bytes out.

Source: docs/reference/requests.md; RocketMQ BrokerController.
"""

import logging
from collections.abc import Sequence
from random import Random

from tandemq.boundary import (
    Closed,
    Disk,
    Event,
    HandshakeFailed,
    JobDone,
    LinkKind,
    Now,
    Opened,
    Outbox,
    Turn,
)
from tandemq.broker.features.built import FEATURES
from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.features.sends.processor import SendPath
from tandemq.broker.ha import feature as replication
from tandemq.broker.ha.registration import Registration
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.acknowledgements import Acknowledgements
from tandemq.broker.kernel.context import AccessFiles, Machine
from tandemq.broker.kernel.dispatcher import Dispatcher
from tandemq.broker.kernel.farewell import Farewell
from tandemq.broker.kernel.housekeeping import Housekeeping
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_flush import LogFlush
from tandemq.broker.kernel.role import Report
from tandemq.broker.kernel.serving import NOTHING
from tandemq.broker.kernel.upkeep import Upkeep
from tandemq.broker.roles import feature as roles
from tandemq.broker.roles.registry_role import RegistryRole
from tandemq.config.account_files import AccountFiles
from tandemq.config.monitoring import labels_of
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError
from tandemq.model.command import Command
from tandemq.replication.authentication import Keyring
from tandemq.telemetry.families import Metrics
from tandemq.turn_budget import TurnBudget

log = logging.getLogger(__name__)


class Broker:
    """The broker as a plain object; see `boundary.Node`."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        outbox: Outbox,
        random: Random,
        machine: Machine,
        now: Now,
        delays_ms: tuple[int, ...],
        *,
        accept_loss: bool = False,
        keyring: Keyring | None = None,
        account_files: AccountFiles | None = None,
    ) -> None:
        """Open the store and load the tables; no port is bound yet.

        Args:
            config: the settings of the start; those that operators changed since are laid over them.
            disk: the store directory.
            outbox: bytes that wait to leave on a connection, and the time of the turn.
            random: source of random numbers.
            machine: facts about the machine.
            now: the current time.
            delays_ms: delay of each level.
            accept_loss: accept what a crash of the machine took from the log, without waiting for slaves.
            keyring: secret of replication; with one, members of the group authenticate each other.
            account_files: files of accounts, with `aclEnable`.

        Raises:
            StoreDamaged, DiskFailed, StoreError: the store directory cannot be used.
            ConfigError: a file of accounts cannot be read, or is malformed.
        """
        access = AccessFiles(keyring, account_files)
        self.kernel = kernel = Kernel(config, disk, outbox, random, machine, now, delays_ms, access)
        self.features = features = kernel.features
        self.acknowledgements = Acknowledgements(kernel)
        self.housekeeping = Housekeeping(kernel)
        features.add(self.acknowledgements, self.housekeeping)
        self.flush = LogFlush(kernel)
        self.upkeep = Upkeep(kernel)
        features.add(self.flush, self.upkeep, *replication.build(kernel, accept_loss=accept_loss))
        for build in FEATURES:
            features.add(*build(kernel))
        features.add(*roles.build(kernel, lambda: self.failover))
        features.bind()

        self.store, self.topics, self.groups, self.offsets = kernel.store, kernel.topics, kernel.groups, kernel.offsets
        self.clients, self.links, self._turn = kernel.clients, kernel.links, kernel.turn
        self.replication = features.find(Replication)
        self.registration = features.find(Registration)
        self.send, self.pull, self.puts = features.find(SendPath), features.find(PullPath), kernel.puts
        self._peers, self._saver, self._schedule = kernel.peers, kernel.saver, kernel.schedule
        self._budget = TurnBudget(outbox)
        self._dispatcher = Dispatcher(kernel, self.send, self.pull)
        self.metrics = _metrics(kernel)
        self.faults = 0
        """Connections closed because of errors of our own."""
        self._farewell: Farewell | None = None
        """Set by `stop`: from then on requests of clients are only refused, with GO_AWAY."""

        self._turn.commit = self._commit
        self._turn.report = self._report
        self._turn.holds = self._holds
        self.role = roles.first_role(kernel, now)
        """Decides what this broker may do."""
        self._turn.serving = serving = self.role.serving(now)
        for follow in features.on_serving_change:
            follow(NOTHING, serving, Turn(), now)

    def _report(self, report: Report, now: Now) -> int:
        return self.role.report(report, now)

    def _holds(self, link: int, request: Command, answer: Command) -> bool:
        return self.role.holds(link, request, answer)

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.kernel.current.config

    @property
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""
        return self._turn.serving.is_master

    @property
    def is_elect(self) -> bool:
        """Whether masters of the group are elected, so that messages wait for every member in sync."""
        return self._turn.serving.is_elect

    @property
    def failover(self) -> RegistryRole | None:
        """The role, for observers, if a registry decides it."""
        return self.role if isinstance(self.role, RegistryRole) else None

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Record the advertised addresses, "ip:port", once the ports are bound."""
        self.kernel.own.address, self.kernel.own.ha_address = address, ha_address
        for listening in self.features.listening:
            listening(address, ha_address, now)
        self.role.listening(address, ha_address, now)

    # A turn.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        turn = self._turn.out = Turn()
        if self._farewell is not None:
            self._turn_away(self._farewell, received, events)
            return turn
        if events:
            self._serve(turn, now)
            for event in events:
                if not isinstance(event, Closed):
                    self._on_event(event, turn, now)
        self._decide(turn, now)
        for begin in self.features.begin_turn:
            begin(turn, now)
        self._receive(received, turn, now)
        self.housekeeping.make_room(turn, now)
        self.send.store_waiting()
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event, turn, now)
        self._run_due(turn, now)
        self._decide(turn, now)
        self._commit(now)
        self.role.before_copy(now)
        self.replication.after_commit(turn, now)
        self.role.after_commit(turn, now)
        self._serve(turn, now)
        self.acknowledgements.release(turn, now)
        self.pull.show(self.store.take_woken())
        self.pull.answer_woken(turn)
        if self.registration.is_due:
            self.registration.register_changes(turn, now)
        saving = self._saver.begin(self._tables_saved)
        if saving is not None:
            turn.jobs.append(saving)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        if self._farewell is not None:
            return None
        times = (
            self._schedule.next_ms(),
            self._peers.deadline_ms(),
            self.acknowledgements.waiters.deadline_ms(),
            self.role.deadline_ms(),
            *self.features.deadlines_ms(),
        )
        return min([time for time in times if time is not None], default=None)

    def turn_took(self, duration_ns: int) -> None:
        """See `telemetry.collection.MonitoredNode`."""
        for turn_took in self.features.turn_took:
            turn_took(duration_ns)

    def not_ready(self, now: Now) -> list[str]:
        """See `telemetry.collection.MonitoredNode`."""
        return [reason for not_ready in self.features.not_ready for reason in not_ready(now)]

    # What this broker may do.

    def _decide(self, turn: Turn, now: Now) -> None:
        """Have the role decide by the events and reports so far."""
        self.role = self.role.tick(turn, now)
        self._serve(turn, now)

    def _serve(self, turn: Turn, now: Now) -> None:
        """Take the verdict of the role as of now, and have the parts follow it."""
        before, serving = self._turn.serving, self.role.serving(now)
        if serving is before:
            return
        self._turn.serving = serving
        if not serving.is_same_service(before):
            for follow in self.features.on_serving_change:
                follow(before, serving, turn, now)

    # What arrives.

    def _receive(self, received: Sequence[tuple[int, bytes]], turn: Turn, now: Now) -> None:
        """Take what other nodes sent, then the requests of clients for as long as the turn may take."""
        links = self.links
        from_clients = [piece for piece in received if piece[0] in links]
        if len(from_clients) < len(received):
            for piece in received:
                if piece[0] not in links:
                    self._take(*piece, turn, now)
            self._serve(turn, now)
        turn.unread = self._budget.serve(from_clients, lambda number, data: self._take(number, data, turn, now))

    def _take(self, number: int, data: bytes, turn: Turn, now: Now) -> bytes:
        """Take bytes of any connection; return those that are left for the next turn."""
        link = self.links.get(number)
        try:
            if link is not None:
                return self._dispatcher.receive(link, data, turn, now, self._budget.is_over)
            self._take_from_node(number, data, turn, now)
        except Exception:  # the outermost loop of a connection: an error there ends that connection only
            log.exception("link: %d closed, an error of ours", number)
            self.faults += 1
            self.puts.drop_link(number)
            turn.closes.append((number, "an error of ours"))
            if link is not None:
                link.is_closed = True
        return b""

    def _take_from_node(self, number: int, data: bytes, turn: Turn, now: Now) -> None:
        self.send.store_waiting()
        if self.replication.owns(number):
            self.replication.received(number, data, turn, now)
        elif self._peers.owns(number):
            self._peers.received(number, data, turn, now)
        elif self.role.owns(number):
            self.role.received(number, data, turn, now)

    def _run_due(self, turn: Turn, now: Now) -> None:
        self._schedule.run_due(now)
        self._peers.expire(turn, now)
        for run_due in self.features.run_due:
            run_due(turn, now)

    def _commit(self, now: Now) -> None:
        """Write the messages of this turn to the log, and begin what their responses wait for."""
        turn = self._turn.out
        needed = self.topics.needed_change(self.store.touched)
        for before_commit in self.features.before_commit:
            before_commit(now)
        acks = self.puts.take_acks()
        try:
            written = self.store.commit()
            self._serve(turn, now)
            for committed in self.features.committed:
                committed(now)
        except StoreError as error:
            for failed in self.features.failed:
                failed()
            self.kernel.write_failures.note(error, now)
            self.store.take_woken()
            self.acknowledgements.refuse(acks, error, turn)
            return
        if written and self.kernel.write_failures.count:
            self.kernel.write_failures.over(now)
        if self.flush.is_sync or self.acknowledgements.waits_for_records:
            self.flush.begin(now)
        if acks:
            self.acknowledgements.acknowledge(acks, needed, turn, now)

    # Events.

    def _on_event(self, event: Event, turn: Turn, now: Now) -> None:
        if self.role.on_event(event, turn, now):
            return
        if isinstance(event, Opened):
            if self._peers.owns(event.link):
                self._peers.opened(event.link, event.local, turn)
            elif event.kind in (LinkKind.HA_MASTER, LinkKind.HA_SLAVE):
                self.replication.opened(event, now)
            elif event.kind in (LinkKind.REMOTING, LinkKind.FAST):
                self.links[event.link] = self.housekeeping.opened(event, now)
        elif isinstance(event, JobDone):
            event.job.done(event, turn, now)
        elif isinstance(event, HandshakeFailed):
            self.replication.handshake_failed(event, now)

    def _tables_saved(self, event: JobDone, turn: Turn, now: Now) -> None:
        self._saver.job_done(event.error)
        self.role.tables_saved(self._saver.settled, event.error, now)
        self.acknowledgements.saved(event.error, turn, now)

    def _on_closed(self, event: Closed, turn: Turn, now: Now) -> None:
        if self.role.on_event(event, turn, now):
            return
        if self._peers.owns(event.link):
            self.registration.closed(self._peers.closed(event.link, now), now)
        elif self.replication.owns(event.link):
            self.replication.closed(event.link, event.reason, now)
        elif self.links.pop(event.link, None) is not None:
            self.role.drop_link(event.link)
            for link_closed in self.features.link_closed:
                link_closed(event.link, turn, now)

    # Stopping.

    def stop(self, now: Now) -> Turn:
        """Unregister at the name servers and the registry. Call `close` once the bytes have left.

        Until then turns answer clients with GO_AWAY, and do nothing else.
        """
        turn = self._turn.out = Turn()
        self.registration.unregister(turn)
        self.role.close(turn, now)
        self._farewell = Farewell(self.links, self.pull.held.of_link, turn)
        return turn

    @property
    def is_left(self) -> bool:
        """Whether, after `stop`, all clients that understand GO_AWAY have got it."""
        return self._farewell is not None and self._farewell.is_over

    def _turn_away(self, farewell: Farewell, received: Sequence[tuple[int, bytes]], events: Sequence[Event]) -> None:
        for number, data in received:
            farewell.receive(number, data, self._turn.out)
        for event in events:
            if isinstance(event, Closed):
                farewell.closed(event.link)

    def close(self) -> None:
        """Save everything and close the store cleanly.

        Raises:
            StoreError: something could not be written; the next start will check the log.
        """
        if self._farewell is not None:
            log.info("broker: clients sent away, %d requests answered GO_AWAY", self._farewell.answers)
        for save in reversed(self.features.save_tables):  # those built later may change tables of those before
            save()
        self._saver.finish()
        for close in self.features.close:
            close()
        self.store.close()


def _metrics(kernel: Kernel) -> Metrics:
    """Return the metrics of all features."""
    config = kernel.current.config
    java = {"cluster": config.cluster, "node_type": "broker", "node_id": config.broker_name}
    group = {"cluster": config.cluster, "broker": config.broker_name, "broker_id": str(config.broker_id)}
    labels = {"rocketmq": java, "tandemq": group}
    if config.shard_of:  # the metrics of all shards are on one page
        labels["process"] = group
    metrics = Metrics(labels, labels_of(config.metrics_label))
    for source in kernel.features.sources():
        metrics.add(source)
    return metrics
