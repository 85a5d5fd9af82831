"""A group as one broker sees it through the registry: configuration, state, who lives; and its own writes of the state.

    SessionUp ─► live/<own id> created ─► config, state, live read, watches set ─► Changed ─► read again

Writes of the state go one at a time. A write whose outcome is unknown is *undecided* until the record has another
version than the one it was meant for. If a later read still shows the old version, the record is written as it stands:
after that the first write can no longer happen. Until then `pending` says what may have come true.

    idle ──propose──► pending ──Done──► idle (ours)
                        │ ├───Conflict──► read ──────────────► idle (somebody else's)
                        │ └───Unknown──► read ─ newer version ─► idle (whatever it says)
                        │                 └─ same version ─► written as it stands ─ Done, or as above

Owner: one `Member`, which looks at the fields after every event. Knows nothing of roles.
Source: docs/internals/failover.md, "The registry".
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
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupState,
    LiveBroker,
    config_from_json,
    config_path,
    live_broker_path,
    live_from_json,
    live_path,
    live_to_json,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.errors import ConfigError

RETRY_MS = 200
"""What was not answered is asked again after this, if the session is up."""
NO_NODE = -1
"""In place of the version of a node that does not exist."""
NO_CONFIG = (
    "the group's configuration is not in the registry: tandemq ha config set, then tandemq ha config apply, bring it"
)


@dataclass(slots=True)
class Pending:
    """A write of the state that is not decided."""

    state: GroupState
    version: int
    """It was meant for."""
    is_undecided: bool = False
    """Its answer was Unknown."""


class RegistryView:
    """Nodes of one group, through one session after the other."""

    def __init__(self, cluster: str, broker_name: str, broker_id: int) -> None:
        """Nothing known."""
        self._cluster, self._name, self._broker_id = cluster, broker_name, broker_id
        self._config_path = config_path(cluster, broker_name)
        self._state_path = state_path(cluster, broker_name)
        self._live_path = live_path(cluster, broker_name)
        self._own_path = live_broker_path(cluster, broker_name, broker_id)
        self.is_up = False
        self.session_id = 0
        self.session_ms = 0
        self.confirmed_ms = 0
        """The latest moment at which something left, or the session began, that the registry has answered since."""
        self.is_live = False
        """Our live node is there, made by the present session."""
        self.config: GroupConfig | None = None
        self.state: GroupState | None = None
        self.version = NO_NODE
        self.is_state_read = False
        """The state was read since we started; it may be missing."""
        self.last_epoch = 0
        """The highest that the state had since we started: no state of a lower one is news."""
        self.live: dict[int, LiveBroker | None] | None = None
        """Who has a live node, with its record once read; None: not read in this session."""
        self.pending: Pending | None = None
        self.written_session = 0
        """Session in which the state was last written by us, our live node being there."""
        self.written_version = NO_NODE
        """Version of that write."""
        self.looks: list[bool] = []
        """Answers to looks, oldest first: True if `live` is as fresh as `version`. The owner takes them at once."""
        self._problems: dict[str, str] = {}
        """By what was read or asked: why that cannot be used."""
        self._own_record: LiveBroker | None = None
        self._own_version = NO_NODE
        self._asks: list[RegistryRequest] = []
        self._kinds: dict[int, tuple[str, int]] = {}
        self._token = 0
        self._retry: dict[str, int] = {}
        self._look_version = NO_NODE
        self._was_live = False
        self._known_in = 0
        """Session in which the state was last found, or written, at its version."""

    # The owner's part.

    @property
    def may_propose(self) -> bool:
        """Whether the state may be written: it is known, we are known to live, and nothing is undecided."""
        return self.is_up and self.is_live and self.is_state_read and self.pending is None

    @property
    def is_record_missing(self) -> bool:
        """Whether the registry was read and has no record of the group."""
        return self.is_state_read and self.state is None and self.version == NO_NODE

    @property
    def problem(self) -> str:
        """What in the registry cannot be used, and why; "" if everything can."""
        return "; ".join(self._problems.values())

    @property
    def is_elsewhere(self) -> bool:
        """Our live node is another session's."""
        return "own" in self._problems

    def next_requests(self) -> list[RegistryRequest]:
        """Operations for the registry, in order."""
        asks, self._asks = self._asks, []
        return asks

    def publish(self, record: LiveBroker) -> None:
        """What our live node says; an existing one is brought up to date."""
        if record == self._own_record:
            return
        self._own_record = record
        if self.is_live and self.is_up:
            self._write_own(record, self._own_version)
        elif self.is_up:
            self._create_own()

    def propose(self, state: GroupState) -> None:
        """Write the state, if it is still as we know it. One proposal at a time."""
        assert self.may_propose, "not now"
        self.pending = Pending(state, self.version)
        self._write(state)

    def look(self, others: Iterable[int]) -> None:
        """Read state and living brokers afresh, in this order; the outcome goes to `looks`."""
        for broker_id in others:
            if self.live is not None and broker_id in self.live:
                self._ask(f"live:{broker_id}", Read(live_broker_path(self._cluster, self._name, broker_id)))
        self._look_version = NO_NODE
        self._ask("look-state", Read(self._state_path))
        self._ask("look", ReadChildren(self._live_path))

    def read_state(self) -> None:
        """Read the state again, for somebody says that it changed."""
        if self.is_up:
            self._ask("state", Read(self._state_path))

    def tick(self, now_ms: int) -> None:
        """Ask again what was not answered."""
        due = [kind for kind, at_ms in self._retry.items() if now_ms >= at_ms]
        for kind in due:
            del self._retry[kind]
            if self.is_up:
                self._ask_again(kind)

    def deadline_ms(self) -> int | None:
        """When `tick` is needed."""
        return min(self._retry.values(), default=None) if self.is_up else None

    # Events.

    def receive(self, event: RegistryEvent, now_ms: int) -> None:
        """What the registry says."""
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
            self.session_id = self.written_session = self._known_in = 0  # an emptied registry may give the id anew
        elif isinstance(event, Changed):
            self._changed(event.path)

    def _session_up(self, up: SessionUp) -> None:
        if up.session_id != self.session_id:
            self.is_live = False
        self.is_up, self.session_id, self.session_ms = True, up.session_id, up.timeout_ms
        self.live = None
        self._retry.clear()
        if not self.is_live:
            self._create_own()
        else:
            self._ask_again("own-read")  # what it was last to say may not have come through
        for kind in ("config", "state-watch", "children"):
            self._ask_again(kind)

    def _changed(self, path: str) -> None:
        kinds = {
            self._config_path: "config",
            self._state_path: "state-watch",
            self._live_path: "children",
            self._own_path: "own-read",
        }
        if self.is_up and path in kinds:
            self._ask_again(kinds[path])

    def _ask_again(self, kind: str) -> None:
        if kind == "config":
            self._ask(kind, Read(self._config_path, watch=True))
        elif kind.startswith("live:"):
            self._ask(kind, Read(live_broker_path(self._cluster, self._name, int(kind[5:]))))
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
            self._written(kind, outcome, session_id, now_ms)
        elif kind == "look":
            self._looked(outcome, session_id)
        elif isinstance(outcome, Unknown | RegistryRefused):
            if kind != "look-state":
                self._retry.setdefault("state-watch" if kind == "state" else kind, now_ms + RETRY_MS)
        elif kind == "config":
            self._config_read(outcome)
        elif kind in ("state", "look-state"):
            self._state_read(outcome, session_id)
            if kind == "look-state" and isinstance(outcome, NodeFound):
                self._look_version = outcome.version
        elif session_id == self.session_id:
            if kind == "children" and isinstance(outcome, Names | NodeMissing):
                self._children_read(outcome)
            elif kind.startswith("live:"):
                self._live_read(int(kind[5:]), outcome)
            else:
                self._own_answered(outcome)

    def _note(self, what: str, trouble: str) -> None:
        """Why something cannot be used; "": it can."""
        self._problems.pop(what, None)
        if trouble:
            self._problems[what] = trouble

    def _config_read(self, outcome: object) -> None:
        try:
            self.config = config_from_json(self._name, outcome.data) if isinstance(outcome, NodeFound) else None
            self._note("config", "" if self.config else NO_CONFIG)
        except ConfigError as error:  # the last usable one holds
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
            if state.epoch < self.last_epoch or (state.epoch == self.last_epoch and outcome.version < self.version):
                self._older_read(state.epoch, session_id)
                return
            self._know(state, outcome.version, session_id)
        elif self.version != NO_NODE and session_id == self._known_in:
            return  # nobody deletes it: an older answer
        else:
            self.state, self.version, self.pending = None, NO_NODE, None
            self._note("state", "")
        self.is_state_read = True
        self._settle()

    def _know(self, state: GroupState, version: int, session_id: int) -> None:
        self.state, self.version, self._known_in = state, version, session_id
        self.last_epoch = max(self.last_epoch, state.epoch)
        self._note("state", "")

    def _older_read(self, epoch: int, session_id: int) -> None:
        """In the session that showed a newer state it is an older answer; in another one the registry may have lost
        what came since, and whoever served by that must not go on."""
        if session_id == self._known_in:
            return
        self.state, self.pending, self.is_state_read = None, None, False
        self._note(
            "state",
            f"the registry has the group's record of epoch {epoch}, and {self.last_epoch} was known here: an "
            "older copy of its data was restored; bring the newer one, or remove the record",
        )

    def _settle(self) -> None:
        """The record was read: is the pending write decided?"""
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

    def _written(self, kind: str, outcome: object, session_id: int, now_ms: int) -> None:
        pending = self.pending
        if pending is None:
            return
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
        for broker_id in ids:
            if self.live[broker_id] is None:
                self._ask(f"live:{broker_id}", Read(live_broker_path(self._cluster, self._name, broker_id)))

    def _looked(self, outcome: object, session_id: int) -> None:
        is_fresh = session_id == self.session_id and self._look_version == self.version
        if isinstance(outcome, Names | NodeMissing) and session_id == self.session_id:
            self._children_read(outcome)
            self.looks.append(is_fresh)
        else:
            self.looks.append(False)

    def _live_read(self, broker_id: int, outcome: object) -> None:
        if self.live is not None and broker_id in self.live and isinstance(outcome, NodeFound):
            try:
                self.live[broker_id] = live_from_json(outcome.data)
                self._note(f"live {broker_id}", "")
            except ConfigError as error:
                self._note(f"live {broker_id}", f"broker {broker_id}: {error}")

    def _own_answered(self, outcome: object) -> None:
        """Our live node; one that another session made (our own before a restart) must vanish first."""
        if isinstance(outcome, Done):
            self.is_live, self._own_version = True, outcome.version
        elif isinstance(outcome, NodeFound):
            self.is_live, self._own_version = outcome.owner == self.session_id, outcome.version
            if not self.is_live:
                who = f"broker {self._broker_id}"
                self._note("own", f"{who} is still listed as living by an earlier session, or runs twice")
            elif self._own_record is not None and outcome.data != live_to_json(self._own_record):
                self._write_own(self._own_record, outcome.version)
        elif isinstance(outcome, Exists | Conflict):
            self._ask_again("own-read")
        elif isinstance(outcome, NodeMissing):
            self.is_live = False
            self._create_own()
        if self.is_live:
            self._note("own", "")
