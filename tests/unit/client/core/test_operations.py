"""Operations that run together, and the number of requests in flight."""

from typing import Any

import pytest

from tandemq.boundary import Now
from tandemq.client.core.operations import (
    REQUESTS_AT_ONCE,
    GetTime,
    Invoke,
    InvokeAll,
    Steps,
    ask_all,
    ask_any_code,
    current_time,
    run_together,
)
from tandemq.errors import NetworkError, NotConnected
from tandemq.model.command import Command


class Network:
    """Answers requests in round trips: a request with the code n is answered with n + 1, one with 0 not at all."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        """Number of requests of each round trip."""

    def run(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                if isinstance(step, GetTime):
                    step = steps.send(Now(7, 8))
                    continue
                assert isinstance(step, InvokeAll)
                self.rounds.append(len(step.requests))
                step = steps.send([self._answer(one) for one in step.requests])
        except StopIteration as over:
            return over.value

    def _answer(self, asked: Invoke) -> Command | NetworkError:
        code = asked.command.code
        return Command(code + 1) if code else NotConnected(f"{asked.address} is down")


def climb(code: int, steps: int) -> Steps[int]:
    """Send a request with the code of the response before, `steps` times; returns the last one."""
    for _ in range(steps):
        code = (yield from ask_any_code("a", Command(code))).code
    return code


def pair(code: int) -> Steps[list[Any]]:
    now = yield from current_time()
    answers = yield from ask_all([Invoke("a", Command(code)), Invoke("b", Command(0))])
    return [now.wall_ms, *answers]


def test_requests_are_sent_in_windows_and_answered_in_order() -> None:
    network = Network()
    last = 2 * REQUESTS_AT_ONCE + 2
    answers = network.run(ask_all([Invoke("a", Command(code)) for code in range(1, last + 1)]))
    assert [one.code for one in answers] == list(range(2, last + 2))
    assert network.rounds == [REQUESTS_AT_ONCE, REQUESTS_AT_ONCE, 2]
    assert network.run(ask_all([])) == []


def test_operations_take_as_many_round_trips_as_the_longest_of_them() -> None:
    network = Network()
    assert network.run(run_together([climb(10, 3), climb(20, 1), climb(30, 0), climb(40, 2)])) == [13, 21, 30, 42]
    assert network.rounds == [3, 2, 1]
    assert network.run(run_together([])) == []


def test_operations_begin_as_others_end_if_only_some_may_run() -> None:
    network = Network()
    assert network.run(run_together([climb(code, 2) for code in range(1, 6)], at_once=2)) == [3, 4, 5, 6, 7]
    assert network.rounds == [2, 2, 2, 2, 1, 1]


def test_operations_with_several_requests_get_the_time_and_errors_among_the_answers() -> None:
    wall_ms, answer, error = Network().run(run_together([pair(5)]))[0]
    assert (wall_ms, answer.code, type(error)) == (8, 6, NotConnected)


def test_error_of_an_operation_can_be_handled_in_it_and_else_ends_all() -> None:
    def careful() -> Steps[str]:
        try:
            yield from climb(0, 1)
        except NetworkError as error:
            return str(error)
        return "no error"

    assert Network().run(run_together([careful(), climb(1, 1)])) == ["a is down", 2]
    with pytest.raises(NotConnected, match="a is down"):
        Network().run(run_together([climb(1, 1), climb(0, 1)]))


def test_operations_are_closed_when_one_of_them_fails_or_their_caller_ends() -> None:
    ended: list[str] = []

    def noted(name: str) -> Steps[int]:
        try:
            return (yield from climb(1, 9))
        finally:
            ended.append(name)

    operations = [noted("a"), climb(0, 1), noted("b")]
    with pytest.raises(NotConnected):
        Network().run(run_together(operations))
    assert ended == ["a", "b"]
    ended.clear()
    operations = [noted("c"), noted("d")]
    together = run_together(operations)
    next(together)
    together.close()
    assert ended == ["c", "d"]
