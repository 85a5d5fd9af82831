"""A group in the registry as seen by one broker (configuration, state, live brokers), and its writes of the state.

    SessionUp ─► live/<own id> created ─► config, state, live/… read, watches set ─► Changed ─► read again

There is one write of the state at a time. A write with an unknown outcome is *undecided* until the record has another
version than the write expects. If a later read still shows the expected version, the record is written unchanged, after
which the first write can no longer succeed. Until then `pending` is the state that the record may have.

    idle ──propose──► pending ──Done──► idle (own state)
                        │ ├───Conflict──► read ──────────────► idle (another member's state)
                        │ └───Unknown──► read ─ newer version ─► idle (the state that was read)
                        │                 └─ same version ─► written unchanged ─ Done, or as above

A record that does not continue the newest one that this broker has seen, before a restart too, is *refused*: an older
copy of the registry's data was restored. Then there is no `state` until a record is read that does.

Owner: one `MemberMachine`, which reads the fields after every event. Independent of roles.
Source: docs/internals/failover.md, "The registry", "When the registry has an older record".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tandemq.coordination.registry.interface import (
    Changed,
    Confirmed,
    Conflict,
    Create,
    Done,
    Exists,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Read,
    ReadChildren,
    RegistryEvent,
    RegistryRefused,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.coordination.registry.lineage import continues
from tandemq.coordination.registry.offsets_node import OffsetsNode
from tandemq.coordination.registry.records import (
    CopiedOffsets,
    GroupConfig,
    GroupState,
    LiveBroker,
    config_from_json,
    config_path,
    live_broker_path,
    live_from_json,
    live_path,
    live_to_json,
    offsets_path,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.errors import ConfigError

RETRY_MS = 200
"""Delay before a request without an answer is repeated while the session is up."""
NO_NODE = -1
"""Stands for the version of a missing node."""
NO_CONFIG = "the group's configuration is not in the registry: tandemq ha config set, then tandemq ha config apply"


@dataclass(slots=True)
class Pending:
    """A write of the state without a known outcome."""

    state: GroupState
    version: int
    """Expected version."""
    is_undecided: bool = False
    """Whether its outcome was Unknown."""
    token: int = 0
    """Token of the last request for the change; answers to earlier requests decide nothing."""


class RegistryView:
    """Nodes of one group, across sessions."""

    def __init__(self, cluster: str, broker_name: str, broker_id: int, seen: GroupState | None = None) -> None:
        """Create a view that has read nothing. `seen`: the newest record that was seen before a restart."""
        self._cluster, self._name, self._broker_id = cluster, broker_name, broker_id
        self._config_path = config_path(cluster, broker_name)
        self._state_path = state_path(cluster, broker_name)
        self._live_path = live_path(cluster, broker_name)
        self._own_path = live_broker_path(cluster, broker_name, broker_id)
        self.is_up = False
        self.session_id = 0
        self.session_ms = 0
        self.confirmed_ms = 0
        """Send time of the latest request that the registry has answered, or start of the session if later."""
        self.is_live = False
        """Whether this broker's live node exists and belongs to the present session."""
        self.config: GroupConfig | None = None
        self.state: GroupState | None = None
        self.version = NO_NODE
        self.is_state_read = False
        """Whether the state was read since the start; it may be missing."""
        self.seen = seen
        """The newest state that was seen, before a restart too; kept on the disk by the broker."""
        self.refused: GroupState | None = None
        """The state in the registry, of node version `version`, while it does not continue `seen`."""
        self.restorations = 0
        """How often the node's version went back with the same changes: a claim of the record must be repeated."""
        self.live: dict[int, LiveBroker | None] | None = None
        """Brokers with a live node, with their records once read; None: not read on this connection."""
        self.pending: Pending | None = None
        self.written_session = 0
        """Session in which this broker last wrote the state while its live node existed."""
        self.written_version = NO_NODE
        """Version of that write."""
        self.polls: list[bool] = []
        """Results of polls, oldest first: True if `live` is as recent as `version`. The owner takes them at once."""
        self.offsets = OffsetsNode(offsets_path(cluster, broker_name))
        self._problems: dict[str, str] = {}
        """Problems, by the node or request concerned."""
        self._own_record: LiveBroker | None = None
        self._own_version = NO_NODE
        self._asks: list[RegistryRequest] = []
        self._kinds: dict[int, tuple[str, int]] = {}
        self._token = 0
        self._retry: dict[str, int] = {}
        self._poll_version = NO_NODE
        self._was_live = False
        self._known_in = 0
        """Session in which the state was last read or written at its version; 0: not since the last connection."""

    # Interface for the owner.

    @property
    def may_propose(self) -> bool:
        """Whether the state may be written: it was read, the own live node exists, and no write is pending."""
        is_read = self.is_state_read or self.refused is not None
        return self.is_up and self.is_live and is_read and self.pending is None

    @property
    def last_epoch(self) -> int:
        """The highest epoch of a state that was seen; 0: none was."""
        return 0 if self.seen is None else self.seen.epoch

    @property
    def is_record_missing(self) -> bool:
        """Whether the registry was read and has no record of the group."""
        return self.is_state_read and self.state is None and self.version == NO_NODE

    @property
    def problem(self) -> str:
        """Problems with the contents of the registry; "" if there are none."""
        return "; ".join(self._problems.values())

    @property
    def is_elsewhere(self) -> bool:
        """Whether this broker's live node belongs to another session."""
        return "own" in self._problems

    def unread(self, brokers: Iterable[int]) -> list[int]:
        """Return those of these brokers that have a live node whose record has not been read on this connection."""
        live = self.live or {}
        return [broker_id for broker_id in brokers if broker_id in live and live[broker_id] is None]

    def next_requests(self) -> list[RegistryRequest]:
        """Return the requests for the registry, in order."""
        asks, self._asks = self._asks, []
        return asks

    def publish(self, record: LiveBroker) -> None:
        """Set the record of this broker's live node, and update an existing node."""
        if record == self._own_record:
            return
        self._own_record = record
        if self.is_live and self.is_up:
            self._write_own(record, self._own_version)
        elif self.is_up:
            self._create_own()

    def propose(self, state: GroupState) -> None:
        """Write the state if its version is still the known one. One proposal at a time."""
        assert self.may_propose, "see may_propose"
        self.pending = Pending(state, self.version)
        self._write(state)

    def poll(self, others: Iterable[int]) -> None:
        """Read these brokers' records, the state and the list of live brokers; the result is added to `polls`."""
        for broker_id in others:
            if self.live is not None and broker_id in self.live:
                self._ask(f"live:{broker_id}", Read(live_broker_path(self._cluster, self._name, broker_id)))
        self._poll_version = NO_NODE
        self._ask("poll-state", Read(self._state_path))
        self._ask("poll", ReadChildren(self._live_path))

    def read_state(self) -> None:
        """Read the state again, because another member reported a change."""
        if self.is_up:
            self._ask("state", Read(self._state_path))

    def read_offsets(self) -> None:
        """Read the offsets that the reader has copied."""
        self._ask("offsets-read", self.offsets.read())

    def write_offsets(self, copied: CopiedOffsets) -> None:
        """Write the offsets, as the reader; see `OffsetsNode.may_write`."""
        self._ask("offsets-write", self.offsets.write(copied))

    def tick(self, now_ms: int) -> None:
        """Repeat requests without an answer, when due."""
        due = [kind for kind, at_ms in self._retry.items() if now_ms >= at_ms]
        for kind in due:
            del self._retry[kind]
            if self.is_up:
                self._ask_again(kind)

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed next."""
        return min(self._retry.values(), default=None) if self.is_up else None

    # Events.

    def receive(self, event: RegistryEvent, now_ms: int) -> None:
        """Take an event of the registry."""
        if isinstance(event, RegistryResponse):
            self._answered(event, now_ms)
        elif isinstance(event, SessionUp):
            self.confirmed_ms = now_ms
            self._session_up(event)
        elif isinstance(event, Confirmed):
            self.confirmed_ms = max(self.confirmed_ms, event.sent_ms)
        elif isinstance(event, SessionSuspended):
            self.is_up = False
        elif isinstance(event, SessionLost):
            self.is_up, self.is_live, self.live = False, False, None
            self.session_id = self.written_session = self._known_in = 0  # an emptied registry may reuse the id
        elif isinstance(event, Changed):
            self._changed(event.path)

    def _session_up(self, up: SessionUp) -> None:
        if up.session_id != self.session_id:
            self.is_live = False
        self.is_up, self.session_id, self.session_ms = True, up.session_id, up.timeout_ms
        self._known_in = 0  # a copy of the registry's data has its sessions too
        self.live = None
        self.offsets.forget()
        self._retry.clear()
        if not self.is_live:
            self._create_own()
        else:
            self._ask_again("own-read")  # the last write of it may not have succeeded
        for kind in ("config", "state-watch", "children"):
            self._ask_again(kind)

    def _changed(self, path: str) -> None:
        kinds = {
            self._config_path: "config",
            self._state_path: "state-watch",
            self._live_path: "children",
            self._own_path: "own-read",
        }
        if not self.is_up:
            return
        if path in kinds:
            self._ask_again(kinds[path])
            return
        parent, _, name = path.rpartition("/")
        if parent == self._live_path and name.isdecimal() and int(name) in (self.live or {}):
            self._ask_again(f"live:{name}")

    def _ask_again(self, kind: str) -> None:
        if kind == "config":
            self._ask(kind, Read(self._config_path, watch=True))
        elif kind.startswith("live:"):
            path = live_broker_path(self._cluster, self._name, int(kind[5:]))
            self._ask(kind, Read(path, watch=path != self._own_path))
        elif kind in ("state", "state-watch"):
            self._ask("state", Read(self._state_path, watch=kind == "state-watch"))
        elif kind == "children":
            self._ask(kind, ReadChildren(self._live_path, watch=True))
        elif kind == "own-read" or (kind == "own-write" and self.is_live):
            self._ask("own-read", Read(self._own_path, watch=True))
        elif not self.is_live:
            self._create_own()

    def _create_own(self) -> None:
        if self._own_record is not None:
            self._ask("own-create", Create(self._own_path, live_to_json(self._own_record), ephemeral=True))

    def _write_own(self, record: LiveBroker, version: int) -> None:
        self._ask("own-write", Write(self._own_path, live_to_json(record), version))

    def _ask(self, kind: str, operation: Operation) -> None:
        self._token += 1
        self._kinds[self._token] = (kind, self.session_id)
        self._asks.append(RegistryRequest(self._token, operation))

    # Answers.

    def _answered(self, answer: RegistryResponse, now_ms: int) -> None:
        kind, session_id = self._kinds.pop(answer.token, ("", 0))
        outcome = answer.outcome
        refusal = f"the registry refuses {kind}: {outcome.reason}" if isinstance(outcome, RegistryRefused) else ""
        self._note(f"asked {kind}", refusal)
        if kind in ("write", "fence"):
            if self.pending is not None and self.pending.token == answer.token:
                self._written(self.pending, kind, outcome, session_id, now_ms)
        elif kind == "poll":
            self._polled(outcome, session_id)
        elif kind.startswith("offsets"):
            self.offsets.answered(outcome, is_read=kind == "offsets-read")
        elif isinstance(outcome, Unknown | RegistryRefused):
            if kind != "poll-state":
                self._retry.setdefault("state-watch" if kind == "state" else kind, now_ms + RETRY_MS)
        elif kind == "config":
            self._config_read(outcome)
        elif kind in ("state", "poll-state"):
            self._state_read(outcome, session_id)
            if kind == "poll-state" and isinstance(outcome, NodeFound):
                self._poll_version = outcome.version
        elif session_id == self.session_id:
            if kind == "children" and isinstance(outcome, Names | NodeMissing):
                self._children_read(outcome)
            elif kind.startswith("live:"):
                self._live_read(int(kind[5:]), outcome)
            else:
                self._own_answered(outcome)

    def _note(self, what: str, problem: str) -> None:
        """Set the problem with something that was read or requested; "" clears it."""
        self._problems.pop(what, None)
        if problem:
            self._problems[what] = problem

    def _config_read(self, outcome: object) -> None:
        try:
            self.config = config_from_json(self._name, outcome.data) if isinstance(outcome, NodeFound) else None
            self._note("config", "" if self.config else NO_CONFIG)
        except ConfigError as error:  # keep the last valid one
            self._note("config", str(error))

    def _state_read(self, outcome: object, session_id: int) -> None:
        if isinstance(outcome, NodeFound):
            try:
                state = state_from_json(self._name, outcome.data)
            except ConfigError as error:
                if outcome.version >= self.version:
                    self.state = None
                    self._note("state", str(error))
                return
            if not self._takes(state, outcome.version, session_id):
                return
        elif self.version != NO_NODE and session_id == self._known_in:
            return  # an outdated answer: nothing deletes the state; that it is lost shows on the next connection
        else:
            self.state, self.version, self.refused = None, NO_NODE, None
            if self.pending is not None and self.pending.version != NO_NODE:
                self.pending = None
            self._note("state", "")
        self.is_state_read = True
        self._settle()

    def _takes(self, state: GroupState, version: int, session_id: int) -> bool:
        """Take a state that was read, unless it is outdated or refused.

        An older state in the session that showed the newer one is an outdated answer, unless it was asked for on
        another connection. There the registry may have lost data, and a member that serves by the newer state must
        stop.
        """
        is_outdated = version < self.version or state.epoch < self.last_epoch
        if session_id == self._known_in and is_outdated:
            return False
        is_unlisted = not state.changes and state.epoch == self.last_epoch and version < self.version
        if is_unlisted or (self.seen is not None and not continues(state, self.seen)):
            self._refuse(state, version)
            return False
        if version < self.version and self.state is not None:
            self.restorations += 1
            self.pending, self.written_session, self.written_version = None, 0, NO_NODE
        self._know(state, version, session_id)
        return True

    def _refuse(self, state: GroupState, version: int) -> None:
        self.state, self.pending, self.is_state_read = None, None, False
        self.refused, self.version = state, version
        assert self.seen is not None, "compared with it"
        self._note(
            "state",
            f"{older_text(state, self.seen)}; this broker serves no client and truncates nothing: restore the newer "
            "data, or choose the member whose log counts with tandemq ha force-master, which shows what is lost",
        )

    def _know(self, state: GroupState, version: int, session_id: int) -> None:
        self.state, self.version, self._known_in = state, version, session_id
        self.refused = None
        if state != self.seen:
            self.seen = state
        self._note("state", "")

    def _settle(self) -> None:
        """Decide the pending write by the record that was read."""
        pending = self.pending
        if pending is None:
            return
        if self.version > pending.version:
            self.pending = None
        elif pending.is_undecided and self.is_up:
            pending.is_undecided = False
            self._write(self.state or pending.state, kind="fence")

    def _write(self, state: GroupState, kind: str = "write") -> None:
        self._was_live = self.is_live
        data = state_to_json(state)
        if self.version == NO_NODE:
            self._ask(kind, Create(self._state_path, data))
        else:
            self._ask(kind, Write(self._state_path, data, self.version))
        assert self.pending is not None, "what is written"
        self.pending.token = self._token

    def _written(self, pending: Pending, kind: str, outcome: object, session_id: int, now_ms: int) -> None:
        if isinstance(outcome, Done):
            state = pending.state if kind == "write" or self.state is None else self.state
            self._know(state, max(self.version, outcome.version), session_id)
            self.pending = None
            if self._was_live and session_id == self.session_id:
                self.written_session, self.written_version = session_id, outcome.version
        elif isinstance(outcome, RegistryRefused) and kind == "write":
            self.pending = None
        else:
            pending.is_undecided = True
            if self.is_up and not isinstance(outcome, Unknown | RegistryRefused):
                self.read_state()
            else:
                self._retry.setdefault("state-watch", now_ms + RETRY_MS)

    def _children_read(self, outcome: Names | NodeMissing) -> None:
        names = outcome.children if isinstance(outcome, Names) else ()
        ids = [int(name) for name in names if name.isdecimal()]
        known = self.live or {}
        for gone in known.keys() - ids:
            self._note(f"live {gone}", "")
        self.live = {broker_id: known.get(broker_id) for broker_id in ids}
        for broker_id in self.unread(ids):
            self._ask_again(f"live:{broker_id}")

    def _polled(self, outcome: object, session_id: int) -> None:
        is_fresh = session_id == self.session_id and self._poll_version == self.version
        if isinstance(outcome, Names | NodeMissing) and session_id == self.session_id:
            self._children_read(outcome)
            self.polls.append(is_fresh)
        else:
            self.polls.append(False)

    def _live_read(self, broker_id: int, outcome: object) -> None:
        if self.live is None or broker_id not in self.live:
            return
        self.live[broker_id] = None
        if isinstance(outcome, NodeFound):  # else deleted: if it is listed again, it is another node
            try:
                self.live[broker_id] = live_from_json(outcome.data)
                self._note(f"live {broker_id}", "")
            except ConfigError as error:
                self._note(f"live {broker_id}", f"broker {broker_id}: {error}")

    def _own_answered(self, outcome: object) -> None:
        """Handle the own live node; a node of another session (this broker's before a restart) must expire first."""
        if isinstance(outcome, Done):
            self.is_live, self._own_version = True, outcome.version
        elif isinstance(outcome, NodeFound):
            self.is_live, self._own_version = outcome.owner == self.session_id, outcome.version
            if not self.is_live:
                who = f"broker {self._broker_id}"
                self._note("own", f"{who} is still listed as live by an earlier session, or runs twice")
            elif self._own_record is not None and outcome.data != live_to_json(self._own_record):
                self._write_own(self._own_record, outcome.version)
        elif isinstance(outcome, Exists | Conflict):
            self._ask_again("own-read")
        elif isinstance(outcome, NodeMissing):
            self.is_live = False
            self._create_own()
        if self.is_live:
            self._note("own", "")


def older_text(state: GroupState, seen: GroupState) -> str:
    """Return that a record of the registry does not continue one that was seen, for operators."""
    return (
        f"the registry has the group's record of {_state_text(state)}, which does not continue the newest one "
        f"that this broker has seen, of {_state_text(seen)}: an older copy of the registry's data was restored"
    )


def _state_text(state: GroupState) -> str:
    return f"epoch {state.epoch} with broker {state.master} as master and {', '.join(map(str, state.in_sync))} in sync"
