"""The parts of a broker, built in the order of their dependencies; each gets the collaborators it uses.

Where two parts need each other, one gets a function that looks the other up when it is called.
"""

from functools import partial
from itertools import count
from random import Random

from tandemq.boundary import Disk, Now, Outbox, Turn
from tandemq.broker.connections.client_requests import ClientCalls, MembershipNotifier
from tandemq.broker.connections.member_requests import MemberRequests
from tandemq.broker.connections.outbound import Peers
from tandemq.broker.connections.refused_peers import RefusedPeers
from tandemq.broker.features.built import FEATURES
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.filter.consumer_filters import CLEAN_MS, ConsumerFilters
from tandemq.broker.ha.admission import SlaveAdmission
from tandemq.broker.ha.digest import DigestProcessor
from tandemq.broker.ha.lost_tail import LostTail
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.ha.metadata_sync import MetadataSync
from tandemq.broker.ha.metadata_tables import MetadataTablesProcessor
from tandemq.broker.ha.offsets_ahead import OffsetsAhead
from tandemq.broker.ha.replica_progress import SlaveOffsets
from tandemq.broker.ha.service import Replication
from tandemq.broker.ha.slave import SlaveSide
from tandemq.broker.ha.truncation import correct_progress
from tandemq.broker.ha.upstream import Upstream, UpstreamByRecord, UpstreamBySettings, Upstreams
from tandemq.broker.integrity.repair import Repairs, Replica
from tandemq.broker.integrity.replica_requests import ReplicaRequests
from tandemq.broker.integrity.scrubber import Scrubber
from tandemq.broker.integrity.verify_job import Entries
from tandemq.broker.kernel.connection import Handler, Link, pack_host
from tandemq.broker.kernel.context import CurrentConfig, CurrentTurn, Machine
from tandemq.broker.kernel.feature import Feature, Features, one_of
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import BrokerRole, Report
from tandemq.broker.kernel.serving import NOTHING
from tandemq.broker.maintenance.housekeeping import Housekeeping
from tandemq.broker.maintenance.log_flush import LogFlush
from tandemq.broker.maintenance.registration import Registration
from tandemq.broker.maintenance.stats import Stats
from tandemq.broker.maintenance.upkeep import Upkeep
from tandemq.broker.metrics.consumer_metrics import ConsumerMetrics
from tandemq.broker.metrics.readiness import Readiness
from tandemq.broker.metrics.replication_metrics import ReplicationMetrics
from tandemq.broker.metrics.request_metrics import RequestMetrics
from tandemq.broker.metrics.store_metrics import StoreMetrics
from tandemq.broker.metrics.topic_metrics import TopicMetrics
from tandemq.broker.processors.admin import AdminProcessor
from tandemq.broker.processors.broker_to_client import Broker2ClientProcessor
from tandemq.broker.processors.config import ConfigProcessor
from tandemq.broker.processors.connections import ConnectionsProcessor
from tandemq.broker.processors.consumer_manage import ConsumerManageProcessor
from tandemq.broker.processors.dispatcher import Dispatcher
from tandemq.broker.processors.query_message import QueryMessageProcessor
from tandemq.broker.processors.queue_info import QueueInfoProcessor
from tandemq.broker.processors.reply_message import ReplyMessageProcessor
from tandemq.broker.processors.reset_offset import ResetOffsetProcessor
from tandemq.broker.processors.runtime_info import RuntimeInfoProcessor
from tandemq.broker.processors.send_back import SendBackProcessor
from tandemq.broker.processors.sliced_responses import SlicedResponses
from tandemq.broker.pull.processor import PullPath
from tandemq.broker.roles.journal import FailoverJournal
from tandemq.broker.roles.metadata_stream import MetadataStream
from tandemq.broker.roles.offset_barrier import OffsetBarrier
from tandemq.broker.roles.offset_handover import OffsetHandover
from tandemq.broker.roles.processor import FailoverProcessor
from tandemq.broker.roles.registry_client import BrokerRegistry
from tandemq.broker.roles.registry_role import RegistryRole
from tandemq.broker.roles.static_role import StaticRole
from tandemq.broker.send.acknowledgements import Acknowledgements
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.clients import Clients, QueueLocks
from tandemq.broker.state.config_overrides import ChangedSettings
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.damage_table import Damages
from tandemq.broker.state.generations import Generations
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.persistence import FOLD_MS, Saver
from tandemq.broker.state.schedule import Schedule
from tandemq.broker.state.topics import Topics, topics_of_batches
from tandemq.broker.static_topics.cleaning import StaticTopicCleaning
from tandemq.broker.static_topics.forwarding import Forwarding
from tandemq.broker.static_topics.processor import StaticTopics
from tandemq.broker.static_topics.update import StaticTopicProcessor
from tandemq.config.monitoring import labels_of
from tandemq.config.settings import BrokerConfig
from tandemq.model.command import Command
from tandemq.registry import parse_address
from tandemq.replication.authentication import Keyring
from tandemq.storage.recovery import Recovered, open_store
from tandemq.storage.store import Store, StoreConfig
from tandemq.telemetry.families import Metrics
from tandemq.telemetry.turn_times import TurnTimes
from tandemq.turn_budget import TurnBudget


class BrokerParts:
    """What `node.Broker` runs turns over."""

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

        Raises:
            StoreDamaged, DiskFailed, StoreError: the store directory cannot be used.
        """
        self.saver = Saver(disk)
        self.changes = ChangedSettings(self.saver)
        self.current = CurrentConfig(self.changes.laid_over(config))
        self.current_turn = CurrentTurn()
        self.turn_times = TurnTimes()
        self.disk = disk
        self.outbox = outbox
        self.budget = TurnBudget(outbox)
        self.random = random
        self.machine = machine
        self.keyring = keyring
        self.started_ms = now.wall_ms
        self.next_link = partial(next, count(-1, -1))
        """Returns the id for a new outgoing connection."""
        self.store, self.recovered = _open(disk, self.current.config, machine, delays_ms)
        self._build_tables(now)
        self._build_paths(now)
        self._build_integrity(now)
        self._build_replication(now, accept_loss=accept_loss)
        self._build_role(now)
        self.upkeep = Upkeep(
            self.store,
            disk,
            self.send,
            self.schedule,
            self.current,
            self.current_turn,
            self.replication.masters.needed,
            self._features_need,
            machine.utc_offset_s,
            now,
        )
        self.handlers: dict[int, Handler] = {}
        static_topics = self._static_topics(now)
        self.features = self._all_features()
        """In the order in which they see a turn."""
        for code, handler in self.features.handlers().items():
            self.handlers[code] = self.members.guarded(code, handler)
        self.dispatcher = Dispatcher(
            self.send,
            self.pull,
            static_topics,
            self.handlers,
            self.housekeeping,
            self.client_calls,
            self.acknowledgements,
            self.saver,
            self._holds,
            self.current_turn,
            self.turn_times,
        )
        for source in self.features.sources():
            self.metrics.add(source)
        self.current_turn.serving = serving = self.role.serving(now)
        for follow in self.features.on_serving_change:
            follow(NOTHING, serving, Turn(), now)

    def _features_need(self) -> dict[str, int]:
        return self.features.needs_log_from()

    def _figures(self, now: Now) -> dict[str, str]:
        return self.features.figures(now)

    def _topic_removed(self, topic: str, now: Now) -> None:
        for forget in self.features.topic_removed:
            forget(topic, now)

    def _copies_tables(self) -> bool:
        return self.current_turn.serving.copies_tables

    def _report(self, report: Report, now: Now) -> int:
        return self.role.report(report, now)

    def _holds(self, link: int, request: Command, answer: Command) -> bool:
        return self.role.holds(link, request, answer)

    def _registry_role(self) -> RegistryRole | None:
        return self.role if isinstance(self.role, RegistryRole) else None

    def _build_tables(self, now: Now) -> None:
        """What the broker knows of topics, groups, offsets and clients."""
        config = self.current.config
        self.topics = Topics(self.saver, self.store, config, now.wall_ms)
        self.groups = Groups(self.saver, config, now.wall_ms)
        self.offsets = ConsumerOffsets(self.saver, now.wall_ms, self._copies_tables, has_log=self.store.has_records)
        self.clients = Clients()
        self.filters = ConsumerFilters(self.saver, now.wall_ms)
        self.client_calls = ClientCalls()
        self.locks = QueueLocks(config.lock_live_ms)
        self.membership = MembershipNotifier(self.clients, self.groups, self.filters)
        self.links: dict[int, Link] = {}
        """Connections of clients."""
        self.schedule = Schedule()
        self.sliced_responses = SlicedResponses(self.schedule, self.links, self.current_turn)
        self.peers = Peers(self.next_link)
        self.damages = Damages()
        self.generations = Generations(self.disk)
        self.schedule.every(FOLD_MS, lambda _: self.saver.fold(), first_ms=now.mono_ms + FOLD_MS)
        self.schedule.every(CLEAN_MS, lambda now: self.filters.clean(now.wall_ms), first_ms=now.mono_ms + CLEAN_MS)
        self.schedule.every(
            lambda: self.current.config.offsets_persist_ms,
            lambda _: self.offsets.save(),
            first_ms=now.mono_ms + config.offsets_persist_ms,
        )

    def _build_paths(self, now: Now) -> None:
        """How messages come in and go out."""
        config, store, schedule = self.current.config, self.store, self.schedule
        self.send = SendPath(config, store, self.topics, self.groups, self.random, pack_host("127.0.0.1:0"))
        self.pull = PullPath(
            config,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.filters,
            self.offsets,
            self.machine.memory_bytes,
            self.outbox,
            self.damages,
            self.current_turn,
        )
        self.housekeeping = Housekeeping(
            self.links,
            self.clients,
            self.locks,
            self.send.dead_letters,
            schedule,
            self.current,
            self.current_turn,
            lambda link: self.replication.masters.peers[link],
            now,
        )
        self.registration = Registration(
            config, self.topics, self.peers, schedule, self.current_turn, self._master_found
        )
        self.acknowledgements = Acknowledgements(
            store, self.send, self.saver, schedule, self._holds, self.current, self.current_turn
        )
        self.stats = Stats(
            store,
            self.send,
            self.pull,
            self.acknowledgements,
            schedule,
            self.current_turn,
            self.current,
            self._transferred,
            self.machine.utc_offset_s,
            now,
        )
        self.flush = LogFlush(
            store, self.send, self.acknowledgements, schedule, self._report, self.current, self.current_turn, now
        )

    def _transferred(self) -> dict[int, int]:
        return self.replication.transferred()

    def _master_found(self, master: str, ha: str, now: Now) -> None:
        self.replication.master_found(master, ha, now)

    def _build_integrity(self, now: Now) -> None:
        """Verification of the log, its repair, and delayed messages, which wait for both."""
        self.refused_peers = RefusedPeers()
        self.members = MemberRequests(self.peers, self.keyring, self.refused_peers, self.current_turn)
        self.scrubber = Scrubber(
            self.store,
            self.saver,
            self.pull,
            self.damages,
            Repairs(
                self.store,
                self.damages,
                self.generations,
                self.members,
                self._replicas,
                self.flush.disk_failed,
                self._save_scrubber,
                self._settled,
                self.schedule,
                self._report,
                self.current,
                self.current_turn,
            ),
            self.schedule,
            self.current,
            self.current_turn,
            now,
        )
        self.replica_requests = ReplicaRequests(
            self.store, self.generations, self.scrubber, self.members, self.links, self.current, self.current_turn
        )
        kernel = Kernel(
            self.disk,
            self.store,
            self.saver,
            self.topics,
            self.offsets,
            self.clients,
            self.damages,
            self.scrubber,
            self.send,
            self.schedule,
            self.current,
            self.current_turn,
            self.outbox,
            now,
        )
        self.built = [feature for build in FEATURES for feature in build(kernel)]
        self.delay = one_of(self.built, DelayedMessages)
        self.timers = one_of(self.built, TimedMessages)
        self.transactions = one_of(self.built, Transactions)

    def _save_scrubber(self) -> None:
        self.scrubber.save()

    def _settled(self, entries: list[Entries]) -> None:
        self.scrubber.settled(entries)

    def _replicas(self) -> list[Replica]:
        """Return the other members that may have good bytes of the log."""
        replication = self.replication
        if not self.current_turn.serving.is_master:
            return [Replica("master", replication.slave.asked_at() if replication.slave is not None else "")]
        slaves = replication.masters.addresses()
        return [Replica(f"slave {number}", address) for number, address in sorted(slaves.items())]

    def _build_replication(self, now: Now, *, accept_loss: bool) -> None:
        """Both sides of replication; the role decides which one is in use."""
        correct = partial(correct_progress, self.store, self.offsets, self.delay)
        lost_tail = LostTail(
            self.store,
            self.disk,
            self.send,
            self.generations,
            correct,
            self._end_sessions,
            self.current,
            may_have_lost=self.recovered.may_have_lost,
        )
        masters = MasterSide(
            self.store,
            self.outbox,
            self.generations,
            lost_tail,
            SlaveAdmission(self.store, self.generations, lost_tail, self.registration, self.current, self.current_turn),
            SlaveOffsets(self.saver),
            self.refused_peers,
            self.housekeeping,
            self._report,
            self.current,
            self.current_turn,
            self.keyring,
        )
        self.stream = MetadataStream(
            self.store, self.topics, self.groups, self.offsets, self.delay, masters, self.outbox
        )
        self.replication = Replication(
            self.store,
            self.disk,
            masters,
            lost_tail,
            self._slave_side,
            Upstreams(self._upstream_by_settings, UpstreamByRecord(self.stream, self.current)),
            self.generations,
            correct,
            self.schedule,
            now,
            accept_loss=accept_loss,
        )

    def _end_sessions(self, reason: str) -> None:
        self.replication.masters.end_sessions(reason)

    def _upstream_by_settings(self, now: Now) -> UpstreamBySettings:
        metadata = MetadataSync(
            self.topics,
            self.groups,
            self.offsets,
            self.delay,
            self.timers.metrics.adopt_body,
            self.peers,
            self.current_turn,
            lambda: self.replication.slave,
            OffsetsAhead(self.offsets, self.members, self.peers, self.current, self.current_turn),
        )
        return UpstreamBySettings(
            metadata,
            self.peers,
            self.registration,
            self.schedule,
            self.current,
            now,
            is_authenticated=self.keyring is not None,
        )

    def _slave_side(self, upstream: Upstream) -> SlaveSide:
        return SlaveSide(
            self.store,
            self.outbox,
            upstream,
            self.members,
            self.generations,
            self.registration,
            self.topics,
            self.offsets,
            self.saver,
            self._report,
            self.current,
            self.current_turn,
            self.keyring,
            self.next_link,
            self.random.getrandbits(48),
        )

    def _build_role(self, now: Now) -> None:
        """The role by the settings, or by the registry of the group."""
        static = StaticRole(self.replication, self.current)
        self.barrier = OffsetBarrier()
        self.role: BrokerRole = static
        """Decides what this broker may do."""
        if self.current.config.registry_address:
            self.role = self._role_by_registry(static)
        else:
            static.begin(now)

    def _role_by_registry(self, static: StaticRole) -> RegistryRole:
        config = self.current.config
        client = f"{config.cluster}/{config.broker_name}/{config.broker_id}-{self.random.getrandbits(48):012x}"
        address = parse_address(config.registry_address)
        return RegistryRole(
            self.store,
            self.replication,
            BrokerRegistry(address, client, config.registry_session_ms, self.next_link, self.keyring),
            FailoverJournal(
                self.disk,
                self.saver,
                has_messages=self.store.log.written_end > 0,
                may_have_lost=self.recovered.may_have_lost or self.replication.awaits_tail,
            ),
            self.stream,
            self.barrier,
            OffsetHandover(self.offsets, self.delay, self.saver, self.members),
            self.clients,
            self.links,
            self.acknowledgements.drop,
            static,
            self.current,
        )

    def _all_features(self) -> Features:
        return Features(
            (
                self.client_calls,
                self.pull,
                self.barrier,
                *self._processors(),
                self.send,
                self.registration,
                self.housekeeping,
                self.flush,
                self.stats,
                *self.built,
                self.scrubber,
                self.upkeep,
                self.replication,
                *self._metrics(),
            )
        )

    def _processors(self) -> tuple[Feature, ...]:
        """Build what answers requests and has no other work."""
        store, topics, groups, offsets, clients = self.store, self.topics, self.groups, self.offsets, self.clients
        pull, send, stats, registration = self.pull, self.send, self.stats, self.registration
        current, turn = self.current, self.current_turn
        self.consumer_manage = ConsumerManageProcessor(
            store,
            topics,
            groups,
            offsets,
            clients,
            self.filters,
            self.locks,
            pull,
            self.membership,
            self.machine.memory_bytes,
            current,
            turn,
        )
        return (
            self.consumer_manage,
            SendBackProcessor(store, topics, groups, send, stats, registration, self.random, turn, current),
            ReplyMessageProcessor(send, clients, self.client_calls, self.links, self.outbox, current, turn),
            QueryMessageProcessor(store, current),
            MetadataTablesProcessor(store, topics, groups, offsets, self.delay, send, current, turn),
            AdminProcessor(
                store, topics, groups, offsets, pull, send, stats, self._topic_removed, self.upkeep, current, turn
            ),
            ConnectionsProcessor(offsets, clients, registration),
            QueueInfoProcessor(
                store, topics, groups, offsets, clients, pull, stats, registration, current, self.sliced_responses
            ),
            Broker2ClientProcessor(store, topics, groups, clients, self.client_calls, self.links, current, turn),
            ResetOffsetProcessor(store, topics, groups, offsets, clients, pull, current, turn),
            RuntimeInfoProcessor(
                store,
                self.disk,
                send,
                stats,
                self.schedule,
                self.replication,
                self._figures,
                turn,
                current,
                self.started_ms,
            ),
            ConfigProcessor(current, self.changes, self.reconfigure),
            DigestProcessor(store),
            FailoverProcessor(self._registry_role, current, turn, offsets, topics),
            self.replica_requests,
            self.members,
            self.static_topic_updates,
        )

    def _static_topics(self, now: Now) -> StaticTopics:
        """Build what static topics need."""
        topics, turn = self.topics, self.current_turn
        forwarding = Forwarding(self.peers, self.current, turn)
        static = StaticTopics(topics, self.send, self.pull, forwarding, self.handlers, self.links, self.outbox, turn)
        cleaning = StaticTopicCleaning(self.store, topics, forwarding, self.schedule, turn, now)
        self.static_topic_updates = StaticTopicProcessor(self.store, topics, self.pull, cleaning, self.current, turn)
        return static

    def _metrics(self) -> tuple[Feature, ...]:
        """Build the sources of metrics (`broker/metrics`)."""
        config, store, role, current = self.current.config, self.store, self._registry_role, self.current
        turn = self.current_turn
        group = {"cluster": config.cluster, "broker": config.broker_name, "broker_id": str(config.broker_id)}
        java = {"cluster": config.cluster, "node_type": "broker", "node_id": config.broker_name}
        self.metrics = Metrics({"rocketmq": java, "tandemq": group}, labels_of(config.metrics_label))
        self.readiness = Readiness(store, self.send, self.replication, role, turn)
        self.request_metrics = RequestMetrics(
            self.turn_times, self.send, self.pull, self.stats, self.links, self.housekeeping, self.schedule
        )
        counters = self.pull.counters
        return (
            TopicMetrics(store, self.topics, self.groups, counters, self.stats),
            ConsumerMetrics(store, self.offsets, counters, self.clients, turn),
            StoreMetrics(store, self.disk, self.send, self.upkeep, self.scrubber, self.damages, current),
            ReplicationMetrics(store, self.replication, role, current, turn),
            self.request_metrics,
        )

    def reconfigure(self, config: BrokerConfig, now: Now) -> None:
        """Apply new settings while running; a period holds from its next run."""
        before, self.current.config = self.current.config, config
        self.current.version.next(now.wall_ms)
        self.topics.adopt_config(config, now.wall_ms)
        self.groups.adopt_config(config)
        for adopt in self.features.adopt_config:
            adopt(config)
        if (config.permission, config.weight) != (before.permission, before.weight):
            self.topics.touch(now.wall_ms)


def _open(disk: Disk, config: BrokerConfig, machine: Machine, delays_ms: tuple[int, ...]) -> tuple[Store, Recovered]:
    return open_store(
        disk,
        StoreConfig(
            config.segment_bytes,
            config.queue_file_bytes,
            config.index_enable,
            config.index_slots,
            config.index_entries,
            delays_ms,
            machine.boot_id,
            topics_of_batches(disk),
        ),
    )
