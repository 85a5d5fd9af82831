"""Operations of several requests, written as one straight story without knowing who runs them.

    def max_offset(queue) -> Steps[int]:
        route = yield from route_of(queue.topic)
        answer = yield from ask(route.master(queue.broker_name), Command(GET_MAX_OFFSET, …))
        return int(answer.fields["offset"])

    ticket = runner.start(max_offset(queue), now)

A step is a value that says what to wait for; the runner sends its outcome, or throws its error, into the generator. The
same stories run on sockets and in the simulator.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

T = TypeVar("T")
RETRIABLE_CODES = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})
"""Answers after which another broker may do what this one did not."""
STALE_ROUTE_CODES = frozenset({14, 16, 17, 1500})


@dataclass(slots=True)
class Invoke:
    """Wait for the answer to one request; errors are thrown."""

    address: str
    command: Command
    timeout_ms: int = 0


@dataclass(slots=True)
class InvokeAll:
    """Wait for the answers to all of these; errors are among the answers."""

    asks: list[Invoke]
    answers: list[Answer | None] = field(default_factory=list)


@dataclass(slots=True)
class Pause:
    """Wait for a while."""

    ms: int


@dataclass(slots=True)
class Await:
    """Wait for a ticket; its error is thrown."""

    ticket: Ticket[Any]


@dataclass(slots=True)
class GetTime:
    """Do not wait; the runner answers with the time it is."""


Step = Invoke | InvokeAll | Pause | Await | GetTime
Steps = Generator[Step, Any, T]


def ask(address: str, command: Command, timeout_ms: int = 0) -> Steps[Command]:
    """The answer to a request.

    Raises:
        NetworkError: nobody answered.
        RemoteError: the answer is another than SUCCESS.
    """
    return checked((yield Invoke(address, command, timeout_ms)))


def ask_any_code(address: str, command: Command, timeout_ms: int = 0) -> Steps[Command]:
    """The answer to a request, whatever its code.

    Raises:
        NetworkError: nobody answered.
    """
    answer: Command = yield Invoke(address, command, timeout_ms)
    return answer


def ask_all(asks: list[Invoke]) -> Steps[list[Answer]]:
    """The answers to several requests sent at once, in their order; an error stands where no answer came."""
    if not asks:
        return []
    answers: list[Answer] = yield InvokeAll(asks)
    return answers


def pause(ms: int) -> Steps[None]:
    """Let time pass."""
    yield Pause(ms)


def wait(ticket: Ticket[T]) -> Steps[T]:
    """The result of another operation."""
    value: T = yield Await(ticket)
    return value


def current_time() -> Steps[Now]:
    """The time it is."""
    now: Now = yield GetTime()
    return now


def checked(answer: Command) -> Command:
    """The answer itself if it says SUCCESS.

    Raises:
        RemoteError: it does not.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer


def refusal(answer: Command) -> RemoteError:
    """An answer that says no, as an error."""
    try:
        name = ResponseCode(answer.code).name
    except ValueError:
        name = "unknown code"
    error = RemoteError(f"{name} ({answer.code}): {answer.remark or 'no remark'}", code=answer.code)
    error.retriable = answer.code in RETRIABLE_CODES
    error.refresh_route = answer.code in STALE_ROUTE_CODES
    return error


def request(code: RequestCode, body: bytes = b"", **fields: object) -> Command:
    """A request whose header fields are given by their names on the wire; None is left out."""
    texts = {name: text_of(value) for name, value in fields.items() if value is not None}
    return Command(code, fields=texts, body=body)


def number(answer: Command, name: str) -> int:
    """A number out of an answer's header.

    Raises:
        ProtocolError: it is missing or no number.
    """
    try:
        return int(answer.fields[name])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the answer has no number {name!r}") from error


def json_object(answer: Command) -> dict[str, Any]:
    """The JSON object in an answer's body.

    Raises:
        ProtocolError: the body is none.
    """
    value = loads(answer.body, is_trusted=True)
    if not isinstance(value, dict):
        raise ProtocolError("the answer's body is no JSON object")
    return value


def text_of(value: object) -> str:
    """A header value as Java writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class OperationRunner:
    """Runs stories: as many at once as there are."""

    def __init__(self, links: RemotingClient, timers: Timers) -> None:
        """Over these links."""
        self._links = links
        self._timers = timers

    def start(self, steps: Steps[T], now: Now) -> Ticket[T]:
        """Run a story up to its first wait; the ticket is settled when it ends."""
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
        def heard(answer: Answer, at: Now) -> None:
            if isinstance(answer, TandemError):
                self._resume(steps, ticket, lambda: steps.throw(answer), at)
            else:
                self._resume(steps, ticket, lambda: steps.send(answer), at)

        if isinstance(step, Invoke):
            self._links.request(step.address, step.command, now, heard, timeout_ms=step.timeout_ms)
        elif isinstance(step, InvokeAll):
            self._ask_all(steps, ticket, step, now)
        elif isinstance(step, Pause):
            self._timers.at(now.mono_ms + step.ms, lambda at: self._resume(steps, ticket, lambda: steps.send(None), at))
        else:
            assert isinstance(step, Await)
            # A settled ticket does not know the time; a timer that is due at once does.
            step.ticket.then(
                lambda done: void(self._timers.at(0, lambda at: self._resume(steps, ticket, _outcome(steps, done), at)))
            )

    def _ask_all(self, steps: Steps[T], ticket: Ticket[T], step: InvokeAll, now: Now) -> None:
        step.answers = [None] * len(step.asks)
        left = len(step.asks)

        def heard(position: int, answer: Answer, at: Now) -> None:
            nonlocal left
            step.answers[position] = answer
            left -= 1
            if not left:
                self._resume(steps, ticket, lambda: steps.send(step.answers), at)

        for position, one in enumerate(step.asks):
            self._links.request(
                one.address,
                one.command,
                now,
                lambda answer, at, position=position: heard(position, answer, at),  # type: ignore[misc]
                timeout_ms=one.timeout_ms,
            )


def _outcome(steps: Steps[T], done: Ticket[Any]) -> Callable[[], Step]:
    error = done.error
    if error is not None:
        return lambda: steps.throw(error)
    return lambda: steps.send(done.result())


def void(_value: object) -> None:
    """Drop a value where none is wanted."""
