"""Knowledge of a member: the registry, the group's configuration, its own log, its lease, the other members.

The member's machine owns one `MemberFacts`; the parts of the machine read it.
Source: docs/internals/failover.md; requirements F09-F33, R11.
"""

from tandemq.boundary import Now
from tandemq.coordination.election import Candidate
from tandemq.coordination.in_sync import InSync
from tandemq.coordination.liveness import GroupPeer
from tandemq.coordination.member.held_lease import HeldLease
from tandemq.coordination.member.orders import MemberSettings
from tandemq.coordination.registry.records import BrokerPermission, GroupMember, GroupState, Mode
from tandemq.coordination.registry.view import RegistryView


class Membership:
    """This broker and the other members, by the group's configuration."""

    def __init__(self, settings: MemberSettings, view: RegistryView) -> None:
        """A broker that has not read the configuration yet."""
        self.settings = settings
        self.id = settings.broker_id
        self._view = view
        self.mode: Mode | None = None
        """The mode of the first configuration read; a changed mode takes effect after a restart."""
        self._first_master: int | None = None
        """The configured master of the first configuration read."""
        self._is_master_since_start: bool | None = None
        """Whether every record read so far names this broker as the master; None: none was read."""

    def adopt_mode(self) -> None:
        """Take the mode from the first configuration that was read."""
        config = self._view.config
        if self.mode is None and config is not None:
            self.mode = config.mode
            self._first_master = None if config.master is None else config.master.broker_id

    def note_master(self, master: int) -> None:
        """Take the master of a record that was read."""
        is_own = master == self.id
        self._is_master_since_start = is_own and self._is_master_since_start is not False

    @property
    def successor(self) -> int | None:
        """The configured master, if it is another one than this master, and was when this one started; else None."""
        config = self._view.config
        named = None if config is None or config.master is None else config.master.broker_id
        is_changed = self._is_master_since_start and named == self._first_master != self.id
        return named if is_changed else None

    @property
    def is_elect(self) -> bool:
        """Whether the group elects its master."""
        return self.mode is Mode.ELECT

    @property
    def own(self) -> GroupMember | None:
        """Configuration of this broker as a member; None if it is not a member."""
        return self.own_of(self.id)

    def own_of(self, broker_id: int) -> GroupMember | None:
        """Return the configuration of a member; None if it is not configured."""
        return None if self._view.config is None else self._view.config.member(broker_id)

    def permission_of(self, broker_id: int) -> BrokerPermission:
        """The configured permission of a member."""
        found = self.own_of(broker_id)
        return BrokerPermission.NONE if found is None else found.permission

    def candidate(self, broker_id: int, epoch: int, log_end: int) -> Candidate:
        """A member as a candidate in an election, with its configured priority."""
        found = self.own_of(broker_id)
        return Candidate(broker_id, epoch, log_end, 0 if found is None else found.priority)


class LogState:
    """The state of this broker's log, as far as leading the group depends on it."""

    def __init__(self, end: int, epoch: int, held: tuple[int, int], *, is_whole: bool) -> None:
        """A recovered log."""
        self.end = end
        """Bytes."""
        self.epoch = epoch
        """The last epoch in the epoch table; 0 if it is empty."""
        self.is_whole = is_whole
        """False while the log may lack bytes that were reported or acknowledged."""
        self.held = held
        """Epoch and version of the last record that named this member the holder; (0, 0): none."""
        self.is_loss_accepted = False
        """The missing bytes stay lost: an operator accepted that, or no member can have more."""
        self.is_doubt_final = False
        """Copying from the master does not make the log whole again before the next start."""
        self.is_refused = False
        """The device has failed: nothing more is written before the next start."""
        self.ready_epoch = 0
        """The epoch that the broker has prepared its log for."""

    def prepared(self, epoch: int, end: int) -> None:
        """The log is recovered and the epoch's entry on disk: from now on it is the group's log."""
        self.ready_epoch, self.end, self.epoch = epoch, end, epoch
        self.is_whole, self.is_loss_accepted = True, False

    def doubt(self, *, is_final: bool) -> None:
        """The log may lack acknowledged messages; `is_final`: copying does not help before the next start."""
        self.is_whole = False
        self.is_doubt_final |= is_final


class PeerTable:
    """The other members: their connections, and how long their live nodes have been missing."""

    def __init__(self, started_ms: int) -> None:
        """Nothing is known; `started_ms` counts as the last time that each peer was heard."""
        self._started_ms = started_ms
        self.known: dict[int, GroupPeer] = {}
        """By broker id; read by the in-sync set."""
        self._absent_since_ms: dict[int, int] = {}

    def get(self, broker_id: int) -> GroupPeer:
        """Return the state of a member as this broker's own connections show it."""
        return self.known.get(broker_id) or self.known.setdefault(broker_id, GroupPeer(heard_ms=self._started_ms))

    def drop_connections(self) -> None:
        """Count all connections as closed, because connections of another epoch do not count."""
        for peer in self.known.values():
            peer.is_linked, peer.acked = False, -1

    def watch(self, view: RegistryView, members: frozenset[int], now: Now) -> None:
        """Note since when live nodes of these members have been missing."""
        if view.live is None or not view.is_up:
            self._absent_since_ms.clear()
            return
        for member in members:
            if member in view.live:
                self._absent_since_ms.pop(member, None)
            else:
                self._absent_since_ms.setdefault(member, now.mono_ms)

    def gone(self, now: Now, silence_ms: int) -> frozenset[int]:
        """Members whose live node has been missing for longer than `silence_ms`."""
        return frozenset(
            broker_id for broker_id, since in self._absent_since_ms.items() if now.mono_ms - since > silence_ms
        )

    def silent(self, now: Now, silence_ms: int) -> frozenset[int]:
        """Members without a connection that were not heard for longer than `silence_ms`."""
        return frozenset(
            broker_id
            for broker_id, peer in self.known.items()
            if not peer.is_linked and now.mono_ms - peer.heard_ms > silence_ms
        )


class MemberFacts:
    """The facts that all parts of a member decide by."""

    def __init__(self, settings: MemberSettings, now: Now, log: LogState, seen: GroupState | None) -> None:
        """Nothing is known of the registry and of other members.

        Args:
            settings: identity, addresses and times.
            now: this moment.
            log: the recovered log.
            seen: the newest record that this broker has seen.
        """
        self.id = settings.broker_id
        self.view = RegistryView(settings.cluster, settings.broker_name, settings.broker_id, seen)
        self.membership = Membership(settings, self.view)
        self.log = log
        self.peers = PeerTable(now.mono_ms)
        self.in_sync = InSync(self.id, ())
        self.lease = HeldLease(settings, self.view)

    def member_with_longer_log(self, *, without: int) -> int | None:
        """Return the live member with the longest log, if it is longer than this broker's; not `without`."""
        found = {
            other: (record.epoch, record.log_end)
            for other, record in (self.view.live or {}).items()
            if record is not None and other not in (self.id, without)
        }
        best = max(found, key=found.__getitem__, default=None)
        return best if best is not None and found[best] > (self.log.epoch, self.log.end) else None

    def next_epoch(self) -> int:
        """Return an epoch above all that this broker and the live members have seen."""
        view = self.view
        epochs = [self.log.epoch, view.last_epoch]
        epochs += [state.epoch for state in (view.state, view.refused) if state is not None]
        for record in (view.live or {}).values():
            if record is not None:
                epochs += [record.epoch, 0 if record.seen is None else record.seen.epoch]
        return max(epochs) + 1
