"""Administrator of groups with a registry: wanted configurations, and how they are written to the registry.

    change ─► wanted ─► read config, state, live ─► allowed? ─► write by compare-and-set ─► written
                 ▲                                     │ no               │ unknown, or conflict
                 └──────── as the registry has it ◄────┘                  └─► again from the start, a moment later

It does what `tandemq ha config set` and `apply --follow` do, with the same checks (`coordination.registry.records`,
`transition`) in the same order. Operations run one at a time, against the registry that the brokers use: over the
network to the name server that hosts it, or the simulated one.

Source: docs/guides/failover.md, "Group configuration".
"""

from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import NamedTuple

from lab.sim.workload.host import ClientHost
from lab.sim.workload.raw_client import RawClient
from lab.sim.world.groups import GroupCluster
from lab.sim.world.network import Network
from lab.sim.world.plan import CLUSTER
from lab.sim.world.simulated_registry import SimRegistry
from lab.sim.world.world import MS, World
from tandemq.codec.proofs import CHALLENGE, PROOF, Keyring, request_proof, to_text
from tandemq.codec.registry import ROLES, decode_outcome, encode_operation
from tandemq.coordination.registry.interface import (
    Done,
    Guard,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    ReadChildren,
    Unknown,
)
from tandemq.coordination.registry.interface import Write as WriteNode
from tandemq.coordination.registry.records import (
    GroupConfig,
    check_config,
    config_from_json,
    config_path,
    config_to_json,
    live_path,
    state_from_json,
    state_path,
)
from tandemq.coordination.registry.transition import objection
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.registry import NAME_SERVER

ADMINISTRATOR_IP = "10.0.8.200"
SESSION_MS = 10_000
ANSWER_MS = 2_000
AGAIN_US = 500 * MS
NAME = "administrator"
Then = Callable[[Outcome], None]


class ConfigurationOutcome(NamedTuple):
    """Outcome of a configuration change: written, refused, or unknown."""

    is_there: bool
    refusal: str = ""
    before: GroupConfig | None = None
    """Configuration in the registry, if the change was refused."""


def carrying(name: str, wanted: GroupConfig) -> Generator[Operation, Outcome, ConfigurationOutcome]:
    """Yield the operations that write a group's configuration; each is sent the outcome of the one before."""
    path = config_path(CLUSTER, name)
    node = yield Read(path)
    record = yield Read(state_path(CLUSTER, name))
    living = yield ReadChildren(live_path(CLUSTER, name))
    if not (
        isinstance(node, NodeFound)
        and isinstance(record, NodeFound | NodeMissing)
        and isinstance(living, Names | NodeMissing)
    ):
        return ConfigurationOutcome(False)
    before = config_from_json(name, node.data)
    if before == wanted:
        return ConfigurationOutcome(True)
    if isinstance(record, NodeFound):
        children = living.children if isinstance(living, Names) else ()
        objected = objection(state_from_json(name, record.data), [int(child) for child in children], before, wanted)
        if objected is not None:
            return ConfigurationOutcome(False, str(objected), before)
    guard = Guard(state_path(CLUSTER, name), record.version) if isinstance(record, NodeFound) else None
    outcome = yield WriteNode(path, config_to_json(wanted), node.version, guard)
    return ConfigurationOutcome(isinstance(outcome, Done))


class Administrator:
    """Writes configurations to the registry once it can be reached and the group's state allows them."""

    def __init__(self, world: World, network: Network, cluster: GroupCluster) -> None:
        """Every group is configured as the seed drew it."""
        self._world = world
        if cluster.groups_plan.registry == NAME_SERVER:
            wire = _Wire(cluster.plan.name_servers[0], cluster.keyring(NAME))
            wire.seat = ClientHost(world, network, ADMINISTRATOR_IP, wire)
            self._do: Callable[[Operation, Then], None] = wire.do
        else:
            self._do = _Ideal(world, cluster.registry).do
        self._busy: set[str] = set()
        self._changes: dict[str, list[tuple[str, str]]] = {}
        """Group to its changes that are not in the registry yet: (kind, text) of each."""
        self.wanted: dict[str, GroupConfig] = {}
        """Group to its wanted configuration; groups that were never changed are missing."""
        self.on_ordered: Callable[[str, GroupConfig], None] = lambda _name, _config: None
        """Called before any part of a change may take effect."""
        self.on_settled: Callable[[str, GroupConfig], None] = lambda _name, _config: None
        """Called when the registry certainly has this configuration."""

    def change(self, name: str, config: GroupConfig, kind: str, text: str) -> None:
        """Change a group's configuration; counted as a fault of this kind once the registry has it."""
        self.wanted[name] = check_config(name, config)
        self._changes.setdefault(name, []).append((kind, text))
        self.on_ordered(name, config)
        self._begin(name)

    def restore(self, name: str, config: GroupConfig) -> None:
        """Restore a group's configuration as drawn; changes that are not in the registry yet are dropped."""
        self.wanted[name] = config
        self._changes.pop(name, None)
        self._begin(name)

    def _begin(self, name: str) -> None:
        if name not in self._busy:
            self._busy.add(name)
            wanted = self.wanted[name]
            self._go_on(name, wanted, carrying(name, wanted), None)

    def _go_on(
        self,
        name: str,
        wanted: GroupConfig,
        steps: Generator[Operation, Outcome, ConfigurationOutcome],
        outcome: Outcome | None,
    ) -> None:
        try:
            operation = next(steps) if outcome is None else steps.send(outcome)
        except StopIteration as end:
            self._busy.discard(name)
            self._ended(name, wanted, end.value)
        else:
            self._do(operation, lambda outcome: self._go_on(name, wanted, steps, outcome))

    def _ended(self, name: str, tried: GroupConfig, result: ConfigurationOutcome) -> None:
        if self.wanted[name] != tried:
            self._begin(name)
        elif result.is_there:
            for kind, text in self._changes.pop(name, ()):
                self._world.fault(kind, f"{name}: {text}")
            self.on_settled(name, tried)
        elif result.before is not None:
            self._world.consequence("configuration-refused", f"{name}: {result.refusal}")
            self._changes.pop(name, None)
            self.wanted[name] = result.before
            self.on_settled(name, result.before)
        else:
            self._world.after(AGAIN_US, lambda: self._begin(name))


class _Ideal:
    """Access to the simulated registry."""

    def __init__(self, world: World, registry: SimRegistry) -> None:
        self._world = world
        self._registry = registry

    def do(self, operation: Operation, then: Then) -> None:
        """Execute an operation after a delay; unknown outcome if the registry is down then."""

        def execute() -> None:
            registry = self._registry
            outcome: Outcome = Unknown()
            if registry.is_up:
                outcome = registry.tree.execute(registry.operator, operation)
                registry.notify_watches()
            then(outcome)

        self._world.after(self._registry.delay(), execute)


class _Wire(RawClient):
    """Access to the registry in a name server.

    One session, presented again with each operation: an operation in flight on an abandoned connection is not executed
    after a later one. One operation at a time: a connection has one challenge.
    """

    seat: ClientHost

    def __init__(self, address: str, keyring: Keyring | None) -> None:
        super().__init__(NAME, Random(NAME), (address,))
        self._keyring = keyring
        self._address = address
        self._session = 0
        self._asked: deque[tuple[Operation, Then]] = deque()
        self._is_busy = False

    def do(self, operation: Operation, then: Then) -> None:
        """Execute an operation; unknown outcome without a response."""
        self._asked.append((operation, then))
        self.seat.wake()

    def act(self) -> None:
        """See `RawClient`."""
        if self._is_busy or not self._asked:
            return
        self._is_busy = True
        operation, report = self._asked.popleft()

        def then(outcome: Outcome) -> None:
            self._is_busy = False
            report(outcome)
            self.seat.wake()

        if self._keyring is None:
            self._connect({}, operation, then)
        else:
            challenge = Command(RequestCode.TANDEM_REGISTRY_CHALLENGE)
            self.ask(self._address, challenge, ANSWER_MS, self._challenged(operation, then))

    def _challenged(self, operation: Operation, then: Then) -> Callable[[Command | None], None]:
        def answered(answer: Command | None) -> None:
            if answer is None or CHALLENGE not in answer.fields:
                then(Unknown())
                return
            self._connect({CHALLENGE: answer.fields[CHALLENGE]}, operation, then)

        return answered

    def _connect(self, proof: dict[str, str], operation: Operation, then: Then) -> None:
        fields = {"client": NAME, "timeoutMs": str(SESSION_MS), "sessionId": str(self._session)}
        connect = Command(RequestCode.TANDEM_REGISTRY_CONNECT, fields=fields | proof)
        if self._keyring is not None:
            connect.fields[PROOF] = to_text(request_proof(ROLES, self._keyring.secrets()[0], connect))
        self.ask(self._address, connect, ANSWER_MS, self._connected(operation, then))

    def _connected(self, operation: Operation, then: Then) -> Callable[[Command | None], None]:
        def answered(answer: Command | None) -> None:
            if answer is None or "sessionId" not in answer.fields:
                then(Unknown())
                return
            self._session = int(answer.fields["sessionId"])
            self.ask(self._address, encode_operation(self._session, operation), ANSWER_MS, lambda a: then(_outcome(a)))

        return answered


def _outcome(answer: Command | None) -> Outcome:
    try:
        return Unknown() if answer is None else decode_outcome(answer)
    except ProtocolError:
        return Unknown()  # the session has ended
