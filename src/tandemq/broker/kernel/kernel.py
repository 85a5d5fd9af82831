"""The parts that all features of a broker share: the log, the tables, the connections, the turn."""

import logging
from functools import partial
from itertools import count
from random import Random

from tandemq.boundary import Disk, Now, Outbox
from tandemq.broker.filter.consumer_filters import CLEAN_MS, ConsumerFilters
from tandemq.broker.kernel.client_requests import ClientCalls
from tandemq.broker.kernel.connection import Link, pack_host
from tandemq.broker.kernel.context import AccessFiles, CurrentConfig, CurrentTurn, Machine, OwnAddress
from tandemq.broker.kernel.feature import Features
from tandemq.broker.kernel.member_requests import MemberRequests
from tandemq.broker.kernel.peers import Peers
from tandemq.broker.kernel.puts import Puts
from tandemq.broker.kernel.refused_peers import RefusedPeers
from tandemq.broker.kernel.shared_tables import SharedTables
from tandemq.broker.kernel.sliced_responses import SlicedResponses
from tandemq.broker.state.clients import Clients
from tandemq.broker.state.config_overrides import ChangedSettings
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.damage_table import Damages
from tandemq.broker.state.failure_log import Failures
from tandemq.broker.state.generations import Generations
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.persistence import FOLD_MS, Saver
from tandemq.broker.state.schedule import Period, Schedule, Task
from tandemq.broker.state.topics import Topics, topics_of_batches
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.codec.remoting.signature import member_credentials
from tandemq.config.access import inner_user
from tandemq.config.settings import BrokerConfig
from tandemq.model.access import Credentials
from tandemq.storage.recovery import Recovered, open_store
from tandemq.storage.store import Store, StoreConfig
from tandemq.telemetry.turn_times import TurnTimes


class Kernel:
    """The services that features are built from."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        outbox: Outbox,
        random: Random,
        machine: Machine,
        now: Now,
        delays_ms: tuple[int, ...],
        access: AccessFiles,
    ) -> None:
        """Open the store and load the tables; see `Broker` for the arguments.

        Raises:
            StoreDamaged, DiskFailed, StoreError: the store directory cannot be used.
        """
        self.began = Now(now.mono_ms, now.wall_ms)
        """When the broker was started."""
        self.machine = machine
        self.random = random
        self.keyring = keyring = access.keyring
        self.account_files = access.accounts
        self.disk = disk
        """The store directory."""
        self.outbox = outbox
        """Bytes that wait to leave on a connection, and the time of the turn."""

        self.features = Features()
        self.turn = CurrentTurn()
        self.turn_times = TurnTimes()
        self.schedule = Schedule()
        self.saver = Saver(disk)
        """Writes the tables below `config/`."""
        self.changes = ChangedSettings(self.saver)
        self.current = CurrentConfig(self.changes.laid_over(config))

        config = self.current.config
        self.store, self.recovered = _open(disk, config, machine, delays_ms)
        """The log, with the queues and the index over it, and what was found at the start."""
        self.topics = Topics(self.saver, self.store, config, now.wall_ms)
        self.groups = Groups(self.saver, config, now.wall_ms)
        self.offsets = ConsumerOffsets(self.saver, now.wall_ms, self._copies_tables, has_log=self.store.has_records)
        self.filters = ConsumerFilters(self.saver, now.wall_ms)
        self.damages = Damages()
        """Damaged ranges of the log."""
        self.generations = Generations(disk)
        """The history of the log."""

        self.own = OwnAddress()
        self.next_link = partial(next, count(-1, -1))
        """Returns the id for a new outgoing connection."""
        self.links: dict[int, Link] = {}
        """Connections of clients."""
        self.replica_links: dict[int, str] = {}
        """Connections to the replication port, with the address of the peer, "ip:port"."""
        self.clients = Clients()
        """Producers and consumers that are connected."""
        self.client_calls = ClientCalls()
        self.peers = Peers(self.next_link, self._inner_credentials)
        self.refused_peers = RefusedPeers()
        self.members = MemberRequests(self.peers, keyring, self.refused_peers, self.turn)
        self.partial_frames = PartialFrames()
        self.sliced_responses = SlicedResponses(self.schedule, self.links, self.turn)
        self.write_failures = Failures(
            logging.ERROR, "a write failed, none of its messages was acknowledged", "writes succeed again"
        )
        self.puts = Puts(self.current, self.store, self.topics, random, pack_host("127.0.0.1:0"))
        """What stores messages, and refuses them."""

        shared = SharedTables(self.topics, self.groups, self.offsets, self.store)
        self.features.add(self.client_calls, self.members, self.puts, shared)
        self._keep_tables()

    def _inner_credentials(self) -> Credentials | None:
        """Return the user as which this broker signs requests to others."""
        inner = inner_user(self.current.config)
        if inner is not None:
            return Credentials(*inner)
        return None if self.keyring is None else member_credentials(self.keyring.secrets()[0])

    def every(self, period_ms: Period, task: Task) -> None:
        """Run a task periodically, first when one period has passed since the start."""
        first_ms = period_ms if isinstance(period_ms, int) else period_ms()
        self.schedule.every(period_ms, task, first_ms=self.began.mono_ms + first_ms)

    def _copies_tables(self) -> bool:
        return self.turn.serving.copies_tables

    def _keep_tables(self) -> None:
        self.every(FOLD_MS, lambda _: self.saver.fold())
        self.every(CLEAN_MS, lambda now: self.filters.clean(now.wall_ms))
        self.every(lambda: self.current.config.offsets_persist_ms, lambda _: self.offsets.save())

    def reconfigure(self, config: BrokerConfig, now: Now) -> None:
        """Apply new settings while running; a period holds from its next run."""
        before = self.current.config
        self.current.change(config, now)
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
