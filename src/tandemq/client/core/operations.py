"""Operations of several requests, written as generators that do no input or output themselves.

    def max_offset(queue) -> Steps[int]:
        route = yield from route_of(queue.topic)
        answer = yield from ask(route.master(queue.broker_name), Command(GET_MAX_OFFSET, …))
        return int(answer.fields["offset"])

    ticket = runner.start(max_offset(queue), now)

A generator yields steps, each of which says what to wait for; the runner sends the outcome into the generator, or
throws the error. The same operations run on sockets and in the simulator.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

T = TypeVar("T")
REQUESTS_AT_ONCE = 512
"""Maximum number of requests of one operation in flight: each must be answered within its timeout."""
RETRIABLE_CODES = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})
"""Response codes after which another broker may carry out the request."""
STALE_ROUTE_CODES = frozenset({14, 16, 17, 1500})
"""Response codes that suggest that the route is out of date."""
NOT_NOW_CODES = frozenset(
    {ResponseCode.NO_PERMISSION, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY, ResponseCode.SYSTEM_BUSY}
)
"""Responses after which the same broker, or the next master, may do what is asked."""


@dataclass(slots=True)
class Invoke:
    """Step: send a request and wait for its response; errors are thrown. `timeout_ms` 0: the client's default."""

    address: str
    command: Command
    timeout_ms: int = 0


@dataclass(slots=True)
class InvokeAll:
    """Step: send several requests at once and wait for all responses; errors are among the answers."""

    requests: list[Invoke]
    answers: list[Answer | None] = field(default_factory=list)


@dataclass(slots=True)
class Pause:
    """Step: wait for a time, milliseconds."""

    ms: int


@dataclass(slots=True)
class Await:
    """Step: wait for a ticket; its error is thrown."""

    ticket: Ticket[Any]


@dataclass(slots=True)
class GetTime:
    """Step: get the current time, without waiting."""


_GET_TIME = GetTime()
Step = Invoke | InvokeAll | Pause | Await | GetTime
Steps = Generator[Step, Any, T]


def ask(address: str, command: Command, timeout_ms: int = 0) -> Steps[Command]:
    """Send a request and return its response.

    Args:
        timeout_ms: 0 for the client's `request_timeout_ms`.

    Raises:
        NetworkError: no response came.
        RemoteError: the code of the response is not SUCCESS.
    """
    return checked((yield Invoke(address, command, timeout_ms)))


def ask_any_code(address: str, command: Command, timeout_ms: int = 0) -> Steps[Command]:
    """Send a request and return its response, with any code.

    Raises:
        NetworkError: no response came.
    """
    answer: Command = yield Invoke(address, command, timeout_ms)
    return answer


def ask_all(requests: list[Invoke]) -> Steps[list[Answer]]:
    """Send several requests and return their responses in the same order; an error where no response came."""
    answers: list[Answer] = []
    for start in range(0, len(requests), REQUESTS_AT_ONCE):
        answers += yield InvokeAll(requests[start : start + REQUESTS_AT_ONCE])
    return answers


def run_together(operations: Sequence[Steps[T]], at_once: int = REQUESTS_AT_ONCE) -> Steps[list[T]]:
    """Run operations at the same time and return their results in the same order.

    The next requests of all of them are sent at once, so that they take as many round trips as one of them.

    Args:
        operations: generators that yield only Invoke, InvokeAll and GetTime; all are closed if one fails.
        at_once: maximum number of operations that have begun and not ended.

    Raises:
        TandemError: of an operation that failed; others may have been carried out.
    """
    results: dict[int, T] = {}
    unstarted = deque(enumerate(operations))
    waiting: list[tuple[int, Steps[T], Invoke | InvokeAll]] = []
    try:
        while unstarted or waiting:
            while unstarted and len(waiting) < at_once:
                index, steps = unstarted.popleft()
                yield from _advance(index, steps, partial(next, steps), waiting, results)
            requests = [
                invoke
                for _, _, step in waiting
                for invoke in (step.requests if isinstance(step, InvokeAll) else [step])
            ]
            answers = iter((yield from ask_all(requests)))
            before, waiting = waiting, []
            for index, steps, step in before:
                outcome: Any = [next(answers) for _ in step.requests] if isinstance(step, InvokeAll) else next(answers)
                go_on = steps.throw if isinstance(outcome, TandemError) else steps.send
                yield from _advance(index, steps, partial(go_on, outcome), waiting, results)
    finally:
        for steps in operations:
            steps.close()
    return [results[index] for index in range(len(operations))]


def _advance(
    index: int,
    steps: Steps[T],
    go_on: Callable[[], Step],
    waiting: list[tuple[int, Steps[T], Invoke | InvokeAll]],
    results: dict[int, T],
) -> Steps[None]:
    """Run an operation up to its next request, which is added to `waiting`, or to its end."""
    try:
        step = go_on()
        while isinstance(step, GetTime):
            step = steps.send((yield step))
    except StopIteration as end:
        results[index] = end.value
        return
    assert isinstance(step, Invoke | InvokeAll), "operations that run together send requests only"
    waiting.append((index, steps, step))


def pause(ms: int) -> Steps[None]:
    """Wait for a time, milliseconds."""
    yield Pause(ms)


def wait(ticket: Ticket[T]) -> Steps[T]:
    """Wait for another operation and return its result.

    Raises:
        TandemError: the operation failed.
    """
    value: T = yield Await(ticket)
    return value


def current_time() -> Steps[Now]:
    """Return the current time."""
    now: Now = yield _GET_TIME
    return now


def checked(answer: Command) -> Command:
    """Return the response if its code is SUCCESS.

    Raises:
        RemoteError: the code is another one.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer


def refusal(answer: Command) -> RemoteError:
    """Return the error for a response whose code is not SUCCESS."""
    try:
        name = ResponseCode(answer.code).name
    except ValueError:
        name = "unknown code"
    error = RemoteError(f"{name} ({answer.code}): {answer.remark or 'no remark'}", code=answer.code)
    error.retriable = answer.code in RETRIABLE_CODES
    error.refresh_route = answer.code in STALE_ROUTE_CODES
    return error


def request(code: RequestCode, body: bytes = b"", **fields: object) -> Command:
    """Return a request with header fields by their names on the wire; fields that are None are left out."""
    texts = {name: text_of(value) for name, value in fields.items() if value is not None}
    return Command(code, fields=texts, body=body)


def number(answer: Command, name: str) -> int:
    """Return an integer header field of a response.

    Raises:
        ProtocolError: the field is missing or is not an integer.
    """
    try:
        return int(answer.fields[name])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the response has no integer field {name!r}") from error


def json_object(answer: Command) -> dict[str, Any]:
    """Return the JSON object in a response's body.

    Raises:
        ProtocolError: the body is not a JSON object.
    """
    value = loads(answer.body, is_trusted=True)
    if not isinstance(value, dict):
        raise ProtocolError("the response body is not a JSON object")
    return value


def text_of(value: object) -> str:
    """Return a header value as Java writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class OperationRunner:
    """Runs operations, any number of them at the same time."""

    def __init__(self, remoting: RemotingClient, timers: Timers) -> None:
        """No operation runs."""
        self._remoting = remoting
        self._timers = timers

    def start(self, steps: Steps[T], now: Now) -> Ticket[T]:
        """Run an operation up to its first wait; the ticket is settled when it ends."""
        ticket: Ticket[T] = Ticket()
        self._resume(steps, ticket, lambda: next(steps), now)
        return ticket

    def _resume(self, steps: Steps[T], ticket: Ticket[T], go_on: Callable[[], Step], now: Now) -> None:
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                ticket.settle(end.value)
                return
            except TandemError as error:
                ticket.fail(error)
                return
            if not isinstance(step, GetTime):
                self._wait(steps, ticket, step, now)
                return
            go_on = lambda: steps.send(now)  # noqa: E731

    def _wait(self, steps: Steps[T], ticket: Ticket[T], step: Step, now: Now) -> None:
        def on_answer(answer: Answer, now: Now) -> None:
            if isinstance(answer, TandemError):
                self._resume(steps, ticket, lambda: steps.throw(answer), now)
            else:
                self._resume(steps, ticket, lambda: steps.send(answer), now)

        if isinstance(step, Invoke):
            self._remoting.request(step.address, step.command, now, on_answer, timeout_ms=step.timeout_ms)
        elif isinstance(step, InvokeAll):
            self._ask_all(steps, ticket, step, now)
        elif isinstance(step, Pause):
            self._timers.at(
                now.mono_ms + step.ms, lambda now: self._resume(steps, ticket, lambda: steps.send(None), now)
            )
        else:
            assert isinstance(step, Await)
            # The callback of a ticket gets no time; that of a timer which is due at once does.
            step.ticket.then(
                lambda done: void(
                    self._timers.at(0, lambda now: self._resume(steps, ticket, _outcome(steps, done), now))
                )
            )

    def _ask_all(self, steps: Steps[T], ticket: Ticket[T], step: InvokeAll, now: Now) -> None:
        step.answers = [None] * len(step.requests)
        left = len(step.requests)

        def on_answer(position: int, answer: Answer, now: Now) -> None:
            nonlocal left
            step.answers[position] = answer
            left -= 1
            if not left:
                self._resume(steps, ticket, lambda: steps.send(step.answers), now)

        for position, invoke in enumerate(step.requests):
            self._remoting.request(
                invoke.address,
                invoke.command,
                now,
                lambda answer, now, position=position: on_answer(position, answer, now),  # type: ignore[misc]
                timeout_ms=invoke.timeout_ms,
            )


def _outcome(steps: Steps[T], done: Ticket[Any]) -> Callable[[], Step]:
    error = done.error
    if error is not None:
        return lambda: steps.throw(error)
    return lambda: steps.send(done.result())


def void(_value: object) -> None:
    """Discard a value, in a lambda that must return None."""
