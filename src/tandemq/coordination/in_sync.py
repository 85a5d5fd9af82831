"""The in-sync set: members whose copy counts for acknowledgements, and the offset up to which all of them have the log.

    decided {1}  ──slave 2 caught up──►  joining {2}: must acknowledge, though the record does not list it yet
         ▲                                   │ it has all acknowledged messages
         │                                   ▼
         └────decided {1, 2} ◄─ written ─  requested {1, 2}: unknown outcome, so members of both sets must acknowledge

A change that makes acknowledgements stricter applies at once; one that relaxes them applies after the registry has
stored it. The confirm offset never decreases within a mastership.

Owner: the master's `MemberMachine`.
Source: docs/internals/failover.md, "In-sync set"; RocketMQ SyncStateSet; requirement R11.
"""

from collections.abc import Collection, Mapping

from tandemq.coordination.liveness import GroupPeer
from tandemq.coordination.registry.records import GroupConfig

JOIN_MS = 1_000
"""A joining slave that does not reach the confirm offset within this time starts over."""


class InSync:
    """The in-sync set, kept by the master of an epoch."""

    def __init__(self, broker_id: int, members: Collection[int]) -> None:
        """Start with the members in the record."""
        self._broker_id = broker_id
        self.confirm_offset = 0
        """Log offset up to which every member of `must_ack` has the log, bytes."""
        self._set(members)

    def begin_epoch(self, members: Collection[int], log_end: int) -> None:
        """Start with the members in the record of another epoch; the confirm offset is at most `log_end`."""
        self.confirm_offset = min(self.confirm_offset, log_end)
        self._set(members)

    def _set(self, members: Collection[int]) -> None:
        self.decided = frozenset(members)
        """The set in the record."""
        self._joining: int | None = None
        self._joining_ms = 0
        self._asked: frozenset[int] = frozenset()
        self.must_ack = self.decided
        """Ids of members that must have a message before it is acknowledged, this one included."""
        self._counted: tuple[GroupConfig | None, frozenset[int], int] = (None, frozenset(), 0)
        """Arguments and result of the last `count`."""
        self._served_from: int | None = None
        """Log end at the start of this mastership: all messages acknowledged before are below it."""
        self._served_ms = 0

    def _unite(self) -> None:
        """Recompute `must_ack` after a change of one of its sets."""
        joining = frozenset() if self._joining is None else frozenset((self._joining,))
        self.must_ack = self.decided | joining | self._asked

    def count(self, config: GroupConfig | None) -> int:
        """Return how many members of the decided set are configured. Cached: called several times per turn."""
        known, members, count = self._counted
        if known is not config or members is not self.decided:
            count = 0 if config is None else sum(config.member(broker_id) is not None for broker_id in self.decided)
            self._counted = (config, self.decided, count)
        return count

    def serve(self, log_end: int, confirm_offset: int, now_ms: int) -> None:
        """Start the mastership, with a log recovered and flushed up to `log_end`.

        `confirm_offset`: the last one known from the previous master.
        """
        self._served_from, self._served_ms = log_end, now_ms
        self.confirm_offset = max(self.confirm_offset, min(confirm_offset, log_end))

    def adopt(self, members: Collection[int], asked: Collection[int]) -> None:
        """Set the members in the record, and the members in a requested change with an unknown outcome."""
        self.decided = frozenset(members)
        self._asked = frozenset(asked)
        if self._joining in self.decided:
            self._joining = None
        self._unite()

    def confirm(self, log_end: int, peers: Mapping[int, GroupPeer]) -> int:
        """Recompute the confirm offset and return it."""
        if self._served_from is not None:
            lowest = log_end
            for member in self.must_ack:
                if member != self._broker_id:
                    peer = peers.get(member)
                    lowest = min(lowest, peer.acked if peer is not None and peer.is_linked else -1)
            self.confirm_offset = max(self.confirm_offset, lowest)
        return self.confirm_offset

    def next_members(
        self,
        now_ms: int,
        peers: Mapping[int, GroupPeer],
        *,
        gone: Collection[int],
        candidates: Collection[int],
        lag_ms_max: int,
        readers: Collection[int] = (),
    ) -> frozenset[int] | None:
        """Return the set to request from the registry if it should change now, else None; one member at a time.

        Args:
            now_ms: monotonic time.
            peers: known members by id.
            gone: members whose live node has been missing for long enough.
            candidates: configured members; others leave the set.
            lag_ms_max: a member that has not caught up for longer leaves the set.
            readers: members that may take over reading; each leaves only while another one that has caught up stays.
        """
        if self._served_from is None or self._asked:
            return None
        for member in sorted(self.decided - {self._broker_id}):
            if member not in candidates:
                return self.decided - {member}
            peer = peers.get(member)
            last_ms = self._served_ms if peer is None else min(peer.caught_up_ms, peer.tables_ms)
            seen_ms = max(last_ms, self._served_ms)
            is_away = member in gone and (peer is None or not peer.is_linked)
            is_stale = is_away or now_ms - seen_ms > lag_ms_max
            if is_stale and not (member in readers and self._is_last(member, now_ms, peers, readers, lag_ms_max)):
                return self.decided - {member}
        self._drop_stuck(now_ms, peers)
        for member in sorted(set(candidates) - self.decided):
            if self._joining is None and self._has_caught_up(peers.get(member), now_ms, lag_ms_max):
                self._joining, self._joining_ms = member, now_ms
                self._unite()
        if self._joining is not None:
            peer = peers[self._joining]
            if peer.has_tables and peer.acked >= max(self.confirm_offset, self._served_from):
                return self.decided | {self._joining}
        return None

    def _is_last(
        self, member: int, now_ms: int, peers: Mapping[int, GroupPeer], readers: Collection[int], lag_ms_max: int
    ) -> bool:
        """Return whether no other reader in the decided set is connected and has caught up."""
        others = (peers.get(broker_id) for broker_id in self.decided.intersection(readers) - {self._broker_id, member})
        return not any(
            peer is not None and peer.is_linked and peer.acked >= 0 and now_ms - peer.caught_up_ms <= lag_ms_max
            for peer in others
        )

    def _drop_stuck(self, now_ms: int, peers: Mapping[int, GroupPeer]) -> None:
        if self._joining is not None:
            peer = peers.get(self._joining)
            if peer is None or not peer.is_linked or now_ms - self._joining_ms > JOIN_MS:
                self._joining = None
                self._unite()

    def _has_caught_up(self, peer: GroupPeer | None, now_ms: int, lag_ms_max: int) -> bool:
        if peer is None or not peer.is_linked or peer.acked < 0 or now_ms - peer.tables_ms > lag_ms_max:
            return False
        return now_ms - peer.caught_up_ms < JOIN_MS
