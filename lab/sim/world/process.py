"""Machines with clocks, and the processes on them: one node each, driven as `real.loop` drives it.

    bytes, events ─► node.turn(received, events, now) ─► sends, closes, connects, jobs

Bytes that arrive within a few milliseconds go into one turn; the end of a connection follows in a later one. Jobs run
on a worker: they take effect when they begin or when they end, at random, and are reported after a delay. A process can
be paused (it gets no turn, and all that arrived when it resumes), killed, or go down with its machine.

A node that asks to be driven again and again without work would be a busy loop in production, and is a violation here;
so is any exception that leaves a turn.
"""

import logging
from collections.abc import Callable
from random import Random
from struct import error as StructError

import msgspec

from lab.sim.world.disk import PowerLoss, SimDisk
from lab.sim.world.network import Network
from lab.sim.world.world import MS, Violation, World
from tandemq.boundary import Closed, Event, Job, JobDone, Node, Now, Turn
from tandemq.errors import StoreError, TandemError
from tandemq.registry import RegistryRequest
from tandemq.turn_budget import TURN_US

log = logging.getLogger(__name__)
SPINS_MAX = 300
TICK_US = 20 * MS
"""Maximum delay of timers, several of which run in one turn, as on a busy machine."""
HANGING, HUNG_US = 0.05, 15_000 * MS
"""Share of the reads of the device for clients that hang, and for how long."""
CRASHES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    LookupError,
    OSError,
    RuntimeError,
    StructError,
    TandemError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""Exceptions that a mistake in a node may raise."""


class SimMachine:
    """A machine: address, disk, clocks, and a boot id that changes when it goes down."""

    def __init__(self, world: World, name: str, ip: str, disk: SimDisk) -> None:
        """A machine that was just switched on; its monotonic clock starts at a random value."""
        self._world = world
        self.name = name
        self.ip = ip
        self.disk = disk
        self.boots = 0
        self.mono_ms = 0
        self.drift_ppm = 0
        """How much faster its clocks run than the world's, ppm."""
        self.wall_ms = 1_790_000_000_000 + world.random.randrange(-2000, 2000)
        self.jumps: list[tuple[int, int]] = []
        """(time in µs, ms) of each jump of the wall clock."""
        self.crashes_us: list[int] = []
        self.boot()

    def boot(self) -> None:
        """Boot: another boot id, another start of the monotonic clock."""
        self.boots += 1
        self.mono_ms = self._world.random.randrange(1_000, 10_000_000) - self._world.now_us // MS

    @property
    def boot_id(self) -> str:
        """Return an id that changes with every boot."""
        return f"{self.name}-{self.boots:04d}"

    def now(self) -> Now:
        """Return this moment by this machine's clocks."""
        passed = self._world.now_us // MS
        passed += passed * self.drift_ppm // 1_000_000
        return Now(passed + self.mono_ms, passed + self.wall_ms)

    def us_of(self, mono_ms: int) -> int:
        """Return the world's time at which this machine's monotonic clock shows `mono_ms`."""
        passed = (mono_ms - self.mono_ms) * MS
        return passed if not self.drift_ppm else -(-passed * 1_000_000 // (1_000_000 + self.drift_ppm))

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back."""
        self.wall_ms += ms
        self.jumps.append((self._world.now_us, ms))


class Process:
    """A running node on a machine."""

    def __init__(self, world: World, network: Network, machine: SimMachine, name: str) -> None:
        """A process without a node: see `start`."""
        self.world = world
        self.network = network
        self.machine = machine
        self.name = name
        self.ip = machine.ip
        self.is_running = True
        self.node: Node | None = None
        self.paused_until_us = 0
        self.sync_delay_us = (800, 6_000)
        self.after_turn: Callable[[Process], None] | None = None
        self.on_power_loss: Callable[[], None] | None = None
        self.registry: Callable[[RegistryRequest], None] | None = None
        """Receives the node's registry requests if its shell holds the session."""
        self._links = 0
        self._elapsed_us = 0
        self._pace = Random(world.random.getrandbits(64))
        self._received: list[tuple[int, bytes]] = []
        self._events: list[Event] = []
        self._due_us: int | None = None
        self._planned: set[int] = set()
        """Times at which the world calls `_drive`; all but `_due_us` are out of date."""
        self._spins = 0
        self._spins_since_us = 0

    def start(self, node: Node) -> None:
        """Set the node, and drive it for the first time."""
        self.node = node
        self._plan(self.world.now_us)

    def backlog(self, link: int) -> int:
        """See `boundary.Outbox`."""
        return self.network.backlog(self, link)

    def elapsed_us(self) -> int:
        """See `boundary.Outbox`; each look takes a random time, so that some turns end before their requests do."""
        self._elapsed_us += int(self._pace.random() ** 8 * 2 * TURN_US)
        return self._elapsed_us

    # Called by the network.

    def next_link(self) -> int:
        """Return the id for an accepted connection."""
        self._links += 1
        return self._links

    def post(self, event: Event) -> None:
        """Queue an event: a change of a connection, or the end of a job."""
        self._events.append(event)
        self._plan(self.world.now_us + 1_000)

    def deliver(self, link: int, data: bytes) -> None:
        """Queue received bytes."""
        self._received.append((link, data))
        self._plan(self.world.now_us + 4_000)

    def pause(self, duration_us: int) -> None:
        """Stop driving the node for a while, as SIGSTOP and SIGCONT do."""
        self.paused_until_us = self.world.now_us + duration_us

    def wake(self) -> None:
        """Drive the node now: another one has put work into it."""
        self._plan(self.world.now_us)

    def kill(self) -> None:
        """End the process: its node is never driven again."""
        self.is_running = False
        self._received.clear()
        self._events.clear()

    # Turns.

    def _plan(self, when_us: int) -> None:
        """Drive the node at a time unless it is due earlier, and not while it is paused."""
        if when_us < self.paused_until_us:
            when_us = self.paused_until_us
        if self._due_us is None or when_us < self._due_us:
            self._due_us = when_us
            if when_us not in self._planned:
                self._planned.add(when_us)
                self.world.at(when_us, self._drive)

    def _drive(self) -> None:
        now_us = self.world.now_us
        self._planned.discard(now_us)
        if self._due_us != now_us or not self.is_running or self.node is None:
            return
        self._due_us = None
        if now_us < self.paused_until_us:
            self._plan(self.paused_until_us)
            return
        received, self._received = self._received, []
        events = self._take_events({link for link, _ in received})
        self._watch_spinning(bool(received or events))
        turn = self.run_turn(self.node, received, events)
        if turn is None or not self.is_running:
            return
        closing = {link for link, _ in turn.closes}
        self._received[:0] = [(link, data) for link, data in turn.unread if link not in closing]
        self.carry_out(turn)
        if self.after_turn is not None:
            self.after_turn(self)
            if not self.is_running:
                return
        if self._received or self._events:
            self._plan(now_us + 1_000)
        deadline = self.node.deadline_ms()
        if deadline is not None:
            at_us = -(-self.machine.us_of(deadline) // TICK_US) * TICK_US
            self._plan(max(at_us, now_us + 100))

    def _take_events(self, receiving: set[int]) -> list[Event]:
        """Return the events that happened, but keep the ends of connections of which the node receives bytes now."""
        events, self._events = self._events, []
        taken: list[Event] = []
        for event in events:
            is_kept = isinstance(event, Closed) and event.link in receiving
            (self._events if is_kept else taken).append(event)
        return taken

    def run_turn(self, node: Node, received: list[tuple[int, bytes]], events: list[Event]) -> Turn | None:
        """Run one turn of the node; any exception is a violation."""
        self.world.turns += 1
        self._elapsed_us = 0
        now = self.machine.now()
        self.machine.disk.wall_ms = now.wall_ms
        try:
            return node.turn(received, events, now)
        except PowerLoss:
            self._stopped()
            return None
        except CRASHES as error:
            raise Violation("I16", f"{self.name} died of {type(error).__name__}: {error}") from error

    def _watch_spinning(self, has_work: bool) -> None:
        self._spins = 0 if has_work else self._spins + 1
        if self._spins % SPINS_MAX == 1:
            self._spins_since_us = self.world.now_us
        elif self._spins % SPINS_MAX == 0 and self._spins:
            passed = self.world.now_us - self._spins_since_us
            if passed < SPINS_MAX * MS:
                raise Violation(
                    "I15", f"{self.name} is driven {SPINS_MAX} times within {passed} us without anything to do"
                )

    def carry_out(self, turn: Turn) -> None:
        """Carry out the actions of a turn."""
        for link, buffers in turn.sends.items():
            data = b"".join(buffers)
            self.world.fold_sent(self.name, link, data)
            self.network.send(self, link, data)
        for link, reason in turn.closes:
            self.network.close(self, link, reason)
        for request in turn.connects:
            self.network.connect(self, request)
        for job in turn.jobs:
            self._start_job(job)
        if turn.asks:
            assert self.registry is not None, "the node asks a registry, and there is none"
            for ask in turn.asks:
                self.registry(ask)

    def _start_job(self, job: Job) -> None:
        random, (low_us, high_us) = self.world.random, self.sync_delay_us
        delay = low_us + int(random.random() * (high_us - low_us))
        if job.is_read and random.random() < HANGING:
            delay += HUNG_US
        if random.random() < 0.5:
            done = self._run_job(job)
            self.world.after(delay, lambda: self._job_ended(done))
        else:
            self.world.after(delay, lambda: self._job_ended(self._run_job(job)))

    def _run_job(self, job: Job) -> JobDone | None:
        if not self.is_running:
            return None
        try:
            return JobDone(job, job.run())
        except StoreError as error:
            return JobDone(job, error=error)
        except PowerLoss:
            self._stopped()
            return None

    def _stopped(self) -> None:
        assert self.on_power_loss is not None, "only a disk with an owner stops its process"
        self.on_power_loss()

    def _job_ended(self, done: JobDone | None) -> None:
        if done is not None and self.is_running:
            self.post(done)
