"""A node's registry operations go to the registry the shell speaks, and what comes back wakes the loop."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tandemq.boundary import Event, Now, Turn
from tandemq.real.loop import Loop
from tandemq.registry import Changed, Create, Done, RegistryEvent, RegistryRequest, RegistryResponse, SessionUp
from tests.blackbox.programs import wait_until


class Registry:
    """Answers each operation from a thread of its own, as kazoo's threads do."""

    problem = ""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._events: list[RegistryEvent] = [SessionUp(1, 2_000)]
        self._lock = threading.Lock()

    def tell(self, event: RegistryEvent) -> None:
        with self._lock:
            self._events.append(event)
        self._wake()

    def ask(self, ask: RegistryRequest) -> None:
        thread = threading.Thread(target=self.tell, args=(RegistryResponse(ask.token, Done(ask.token), 0),))
        thread.start()

    def take_events(self) -> list[RegistryEvent]:
        with self._lock:
            events, self._events = self._events, []
        return events


class Asker:
    """A node that asks one operation after the other, and never needs to be woken by the clock."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.told: list[Event] = []

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        turn = Turn()
        self.told += events
        answered = sum(isinstance(event, RegistryResponse) for event in self.told)
        if events and answered < self.count:
            turn.asks.append(RegistryRequest(answered + 1, Create(f"/{answered}", b"")))
        return turn

    def deadline_ms(self) -> int | None:
        return None


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_operations_go_to_the_registry_and_its_events_wake_the_loop(loop: Loop) -> None:
    node = Asker(500)
    registry = loop.registry = Registry(loop.wake)
    thread = threading.Thread(target=loop.run, args=(node,))
    thread.start()
    wait_until(lambda: len(node.told) == 501, "each answer came, and caused the next question")
    registry.tell(Changed("/a"))
    wait_until(lambda: node.told[-1] == Changed("/a"), "told of a change while it slept")
    loop.stop()
    thread.join(30)
    assert node.told[0] == SessionUp(1, 2_000)
    assert [event.token for event in node.told if isinstance(event, RegistryResponse)] == list(range(1, 501))
