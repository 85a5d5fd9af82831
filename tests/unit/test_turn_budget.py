"""Time of a turn, shared among connections."""

from collections.abc import Callable

from tandemq.turn_budget import TURN_US, TurnBudget


class _Shell:
    """A shell whose time passes only as the test says."""

    def __init__(self) -> None:
        self.passed_us = 0

    def backlog(self, link: int) -> int:
        return 0

    def elapsed_us(self) -> int:
        return self.passed_us


class _Server:
    """Serves requests of one byte, each of which takes `cost_us`."""

    def __init__(self, cost_us: int) -> None:
        self.shell = _Shell()
        self.budget = TurnBudget(self.shell)
        self.cost_us = cost_us
        self.served: list[int] = []

    def take(self, link: int, data: bytes) -> bytes:
        at = 0
        while at < len(data):
            self.shell.passed_us += self.cost_us
            self.served.append(link)
            at += 1
            if self.budget.is_over():
                return data[at:]
        return b""

    def turn(self, received: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        self.shell.passed_us = 0
        self.served.clear()
        return self.budget.serve(received, self.take)


def test_turn_ends_when_its_time_is_over() -> None:
    server = _Server(cost_us=TURN_US // 10)
    left = server.turn([(1, bytes(1000))])
    assert len(server.served) == 10
    assert left == [(1, bytes(990))]


def test_every_connection_is_served_beside_one_that_floods() -> None:
    server = _Server(cost_us=TURN_US // 10)
    left = server.turn([(1, bytes(1000)), (2, b"a"), (3, b"b")])
    assert {2, 3} <= set(server.served)
    assert [link for link, _ in left] == [1]


def test_bytes_of_a_connection_stay_in_order() -> None:
    server = _Server(cost_us=TURN_US)
    assert server.turn([(1, b"ab"), (2, b"x"), (1, b"cd")]) == [(2, b"x"), (1, b"b"), (1, b"cd")]


def test_connections_that_were_not_reached_come_first_in_the_next_turn() -> None:
    server = _Server(cost_us=TURN_US)
    left = [(link, bytes(10)) for link in range(5)]
    first = []
    for _ in range(5):
        left = server.turn(left)
        first.append(server.served[0])
    assert first == [0, 1, 2, 3, 4]


def test_request_that_takes_longer_than_a_turn_is_served_alone() -> None:
    server = _Server(cost_us=TURN_US * 3)
    assert server.turn([(1, b"abc"), (2, b"x")]) == [(2, b"x"), (1, b"bc")]
    assert server.served == [1]


def test_nothing_is_left_without_a_clock() -> None:
    served: list[bytes] = []
    is_over: Callable[[], bool]
    budget = TurnBudget(None)
    is_over = budget.is_over

    def take(_link: int, data: bytes) -> bytes:
        served.append(data)
        return data if is_over() else b""

    assert budget.serve([(1, bytes(10_000)), (2, b"a")], take) == []
    assert served == [bytes(10_000), b"a"]
