"""Role, group, lease, and both ends of each replication connection.

The alert rules rest on these: `tandemq_broker_master` is 1 on the active master of a group only, `tandemq_group_epoch`
grows with each election, and `tandemq_registry_up` says whether a member reaches the registry.
Source: docs/guides/monitoring.md; docs/internals/failover.md.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.roles.registry_role import RegistryRole, RegistryRoleOf
from tandemq.replication.master import MasterSessionState
from tandemq.replication.slave import SlaveSessionState
from tandemq.telemetry.families import Batch, Source, Values, counter, gauge, single

MASTER = gauge("tandemq_broker_master", "1 on the active master of the group, 0 on its other members.")
ROLE = gauge("tandemq_broker_role", "1 for the present role or stage.", "role")
MAY_READ = gauge("tandemq_may_read", "Whether consumers may read here.")
MAY_WRITE = gauge("tandemq_may_write", "Whether producers may write here.")
ISOLATED = gauge("tandemq_isolated", "Whether the member has lost the registry and its slaves, and serves nothing.")
EPOCH = gauge("tandemq_group_epoch", "Epoch of the group's record, or generation of the log without a registry.")
MEMBERS = gauge("tandemq_group_members", "Configured members of the group.")
IN_SYNC = gauge("tandemq_group_in_sync_members", "Members in sync, the master included, as this member knows them.")
IN_SYNC_MIN = gauge("tandemq_group_in_sync_members_min", "Members in sync without which messages are refused.")
TROUBLE = gauge("tandemq_config_trouble", "Whether something is wrong with the registry or in the group's record.")
LEASE = gauge("tandemq_lease_remaining_seconds", "Time until the lease of the serving member ends unless renewed.")
REGISTRY_UP = gauge("tandemq_registry_up", "Whether the session at the registry is up.")
REGISTRY_SESSION = gauge("tandemq_registry_session_seconds", "Session timeout at the registry.")
ROLE_CHANGES = counter("tandemq_role_changes_total", "Times this member became master or slave since the start.")
ELECTIONS = counter("tandemq_elections_total", "Times this member became the master of a new epoch since the start.")
LAG_BYTES = gauge(
    "tandemq_replication_lag_bytes", "Bytes of the master's log that a slave has not acknowledged.", "peer"
)
LAG_SECONDS = gauge(
    "tandemq_replication_lag_seconds", "How long a slave of a group with a registry has not caught up.", "peer"
)
ACKED = gauge("tandemq_replication_acked_offset", "Log offset that a slave has acknowledged.", "peer")
CONNECTED = gauge("tandemq_replication_connected", "Whether a replication connection copies.", "peer")
SECURED = gauge("tandemq_replication_secured", "What protects a replication connection.", "peer", "by")
LAST_READ = gauge("tandemq_replication_last_read_seconds", "Time since bytes came from the peer.", "peer")
SENT = gauge("tandemq_replication_sent_bytes", "Log bytes sent to a slave on its present connection.", "peer")
RECEIVED = gauge("tandemq_replication_received_bytes", "Log bytes received on the present connection to the master.")
REFUSED = counter("tandemq_replication_refused_total", "Replication connections refused here or by the master.")


class ReplicationMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel, role: RegistryRoleOf) -> None:
        """`role` returns the role, if a registry decides it."""
        self._store = kernel.store
        self._replication = kernel.features.find(Replication)
        self._role = role
        self._turn = kernel.turn
        self._current = kernel.current

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        role = self._role()
        if role is not None:
            yield from self._collect_registry(role, now)
        else:
            yield from self._collect_static()
        yield None
        yield from self._collect_slaves(now)
        yield from self._collect_own(now)

    def _collect_static(self) -> Iterator[Batch]:
        is_master = self._turn.serving.is_master
        yield single(MASTER, is_master)
        yield Batch(ROLE, {("master" if is_master else "slave",): 1})
        yield single(EPOCH, self._replication.log_epoch)
        if is_master:
            config, masters = self._current.config, self._replication.masters
            nearest = self._store.log.written_end - config.ha_lag_bytes_max
            yield single(IN_SYNC, 1 + sum(acked > nearest for acked in masters.acked_offsets()))
            yield single(IN_SYNC_MIN, config.in_sync_replicas if self._turn.serving.waits_for_replicas else 1)

    def _collect_registry(self, role: RegistryRole, now: Now) -> Iterator[Batch]:
        member = role.member
        status = member.status(now)
        is_serving = role.is_serving(now)
        yield single(MASTER, role.is_master and is_serving)
        yield Batch(ROLE, {(status.stage.value.replace(" ", "_"),): 1})
        yield single(MAY_READ, status.may_read)
        yield single(MAY_WRITE, status.may_write)
        yield single(ISOLATED, status.is_lonely)
        yield single(EPOCH, status.epoch)
        yield single(MEMBERS, len(member.view.config.members) if member.view.config is not None else 0)
        yield single(IN_SYNC, len(status.in_sync))
        yield single(IN_SYNC_MIN, self._current.config.min_in_sync)
        yield single(TROUBLE, bool(status.trouble))
        if status.lease_left_ms is not None and is_serving:
            yield single(LEASE, status.lease_left_ms / 1000)
        yield single(REGISTRY_UP, status.registry == "up")
        yield single(REGISTRY_SESSION, status.session_ms / 1000)
        yield single(ROLE_CHANGES, role.role_changes)
        yield single(ELECTIONS, role.elections)
        if role.is_master:
            late: Values = {}
            for configured in member.view.config.members if member.view.config is not None else ():
                peer = member.peer(configured.broker_id)
                if configured.broker_id != member.id and peer.is_linked and peer.acked >= 0:
                    behind = peer.acked < member.log_end
                    late[str(configured.broker_id),] = max(0, now.mono_ms - peer.caught_up_ms) / 1000 if behind else 0
            yield Batch(LAG_SECONDS, late)

    def _collect_slaves(self, now: Now) -> Iterator[Batch]:
        """Yield the master's end of each connection."""
        masters, end = self._replication.masters, self._store.log.written_end
        lag: Values = {}
        acked: Values = {}
        connected: Values = {}
        secured: Values = {}
        read: Values = {}
        sent: Values = {}
        for session in masters.sessions.values():
            if session.state is not MasterSessionState.TRANSFER:
                continue
            peer = str(session.hello.broker_id) if session.hello is not None else "classic"
            lag[peer,] = end - max(0, session.acked_offset)
            acked[peer,] = max(0, session.acked_offset)
            connected[peer,] = 1
            secured[peer, _protection(session.tls, is_authenticated=session.is_authenticated)] = 1
            read[peer,] = (now.mono_ms - session.last_read_ms) / 1000
            sent[peer,] = session.transferred_bytes
        slave = self._replication.slave
        if slave is not None and not self._turn.serving.is_master:
            session_to_master = slave.session
            copies = session_to_master is not None and session_to_master.state is SlaveSessionState.TRANSFER
            connected["master",] = int(copies)
            if copies and session_to_master is not None:
                by = _protection(session_to_master.tls, is_authenticated=session_to_master.is_authenticated)
                secured["master", by] = 1
                read["master",] = (now.mono_ms - session_to_master.last_read_ms) / 1000
        yield Batch(LAG_BYTES, lag)
        yield Batch(ACKED, acked)
        yield Batch(CONNECTED, connected)
        yield Batch(SECURED, secured)
        yield Batch(LAST_READ, read)
        yield Batch(SENT, sent)

    def _collect_own(self, _now: Now) -> Iterator[Batch]:
        """Yield the metrics of both ends of replication."""
        masters, slave = self._replication.masters, self._replication.slave
        if slave is not None and slave.session is not None:
            yield single(RECEIVED, slave.session.received_bytes)
        yield single(REFUSED, masters.refusals.count + (slave.refusals.count if slave is not None else 0))


def _protection(tls: str, *, is_authenticated: bool) -> str:
    found = ["secret"] * is_authenticated + [tls] * bool(tls)
    return "+".join(found) or "nothing"
