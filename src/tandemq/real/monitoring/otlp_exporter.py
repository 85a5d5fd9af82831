"""Push of metrics to an OpenTelemetry collector, on a thread of its own: OTLP over HTTP.

    every interval: ask the event loop for the metrics ─► gzip ─► POST ─► accepted
                                                                  ├─► 429, 502, 503, 504, no connection: again, later
                                                                  └─► any other answer: this push is dropped

One push is in memory at a time. It is tried again until the next one is due, after Retry-After or with growing pauses;
then the newer values replace it, and since counters are cumulative nothing is lost. Deltas begin at the last push that
was accepted, so they lose nothing either. The collector is not trusted: an attempt has a time limit as a whole, an
answer RESPONSE_BYTES_MAX bytes, redirects are not followed, and its texts are shortened before they are logged.

Source: docs/guides/monitoring.md; the OTLP specification 1.x, "OTLP/HTTP", "Failures" and "Throttling".
"""

import io
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from random import uniform
from typing import NamedTuple

from isal import igzip

from tandemq.boundary import Now
from tandemq.config.monitoring import PushTarget
from tandemq.errors import ConfigError
from tandemq.real.monitoring.metered_node import Answer, MeteredNode, Question, QuestionKind
from tandemq.telemetry.families import Batch, counter, gauge, single
from tandemq.telemetry.otlp import CONTENT_TYPE, OtlpRenderer, fields_of

log = logging.getLogger(__name__)
RETRYABLE = frozenset({429, 502, 503, 504})
FIRST_PAUSE_S, PAUSE_S_MAX, PAUSE_FACTOR = 1.0, 30.0, 2.0
RETRY_AFTER_S_MAX = 600.0
RESPONSE_BYTES_MAX = 64 * 1024
CLOSE_SECONDS = 1.0
_TEXT_CHARACTERS = 200
_PARTIAL_SUCCESS, _REJECTED_POINTS, _ERROR_MESSAGE, _STATUS_MESSAGE = 1, 1, 2, 2
"""Fields of ExportMetricsServiceResponse, ExportMetricsPartialSuccess and google.rpc.Status."""

PUSHES = counter(
    "tandemq_metrics_pushes_total",
    "Pushes to the collector: accepted, rejected by it, or failed after all retries.",
    "outcome",
)
RETRIES = counter("tandemq_metrics_push_retries_total", "Further attempts of pushes that the collector did not take.")
REJECTED_POINTS = counter(
    "tandemq_metrics_push_rejected_points_total", "Data points that the collector rejected in pushes that it accepted."
)
LAST_PUSH = gauge(
    "tandemq_metrics_last_push_timestamp_seconds", "Calendar time of the last accepted push; 0: none yet."
)


class PushOutcome(Enum):
    """Outcome of a push."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"


class _Result(NamedTuple):
    """Result of one attempt."""

    outcome: PushOutcome
    """FAILED: it may be tried again."""
    reason: str = ""
    retry_after_s: float = 0.0
    rejected_points: int = 0


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Where to push, and how often."""

    target: PushTarget
    interval_s: float
    timeout_s: float
    headers: Callable[[], Mapping[str, str]]
    """Returns headers of the operator, such as a token; raises ConfigError if they cannot be read."""
    tls: ssl.SSLContext | None = None


class OtlpExporter:
    """The pushes of one process. `start` begins, `close` ends them."""

    def __init__(self, node: MeteredNode, renderer: OtlpRenderer, settings: PushSettings, agent: str) -> None:
        """Create it without a thread.

        Args:
            node: the node, which has the same renderer.
            renderer: makes the requests.
            settings: where to, and how often.
            agent: name and version of the program, for User-Agent.
        """
        self._node = node
        self._renderer = renderer
        self._settings = settings
        self._agent = agent
        self._outcomes = dict.fromkeys(PushOutcome, 0)
        self._retries = self._rejected_points = 0
        self._accepted_s = 0.0
        self._state: tuple[PushOutcome, bool] | None = None
        """Last logged outcome, and whether points were rejected in it."""
        self._failed_since = 0
        self._answer: Answer | None = None
        self._answered = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        node.node.metrics.add(self._collect)

    def start(self) -> None:
        """Begin: the first push is due after one interval."""
        self._thread.start()

    def close(self) -> None:
        """End the pushes; a push in progress is given up."""
        self._is_closing.set()
        self._answered.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=CLOSE_SECONDS)

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        yield Batch(PUSHES, {(outcome.value,): count for outcome, count in self._outcomes.items()})
        yield single(RETRIES, self._retries)
        yield single(REJECTED_POINTS, self._rejected_points)
        yield single(LAST_PUSH, self._accepted_s)

    # The thread.

    def _run(self) -> None:
        interval_s = self._settings.interval_s
        due_s = time.monotonic() + interval_s
        while not self._is_closing.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + interval_s, time.monotonic())
            body = self._body()
            if body is not None:
                due_s = max(due_s, self._push(body, due_s))

    def _body(self) -> bytes | None:
        """Return the next request, compressed; None when this ends."""
        self._answered.clear()
        if self._is_closing.is_set():  # perhaps just before: the loop is stopped by then, and answers nothing
            return None
        self._node.ask(Question(QuestionKind.OTLP, self._reply))
        self._answered.wait()
        if self._is_closing.is_set() or self._answer is None:
            return None
        answer, self._answer = self._answer, None
        return igzip.compress(self._renderer.request(answer.families), 1)

    def _reply(self, answer: Answer) -> None:
        """Take the answer, on the loop's thread."""
        self._answer = answer
        self._answered.set()

    def _push(self, body: bytes, until_s: float) -> float:
        """Push, again and again until `until_s` if need be; return before which time the next push must not come."""
        pause_s = FIRST_PAUSE_S
        while True:
            result = self._attempt(body)
            wait_s = result.retry_after_s or pause_s * uniform(0.5, 1.0)
            retry_s = time.monotonic() + wait_s
            if result.outcome is not PushOutcome.FAILED or retry_s >= until_s:
                self._note(result)
                return retry_s if result.retry_after_s else 0.0
            self._retries += 1
            pause_s = min(pause_s * PAUSE_FACTOR, PAUSE_S_MAX)
            if self._is_closing.wait(wait_s):
                return 0.0

    def _note(self, result: _Result) -> None:
        """Count a push, and log it if it went differently from the one before."""
        outcome, url = result.outcome, self._settings.target.url
        self._outcomes[outcome] += 1
        self._rejected_points += result.rejected_points
        state = (outcome, result.rejected_points > 0)
        is_new, self._state = state != self._state, state
        if outcome is PushOutcome.ACCEPTED:
            self._renderer.accepted()
            self._accepted_s = time.time()
        if is_new:
            lost = f", after {self._failed_since} pushes that it did not take" if self._failed_since else ""
            if outcome is not PushOutcome.ACCEPTED:
                log.warning("metrics: collector %s does not take pushes: %s", url, result.reason)
            elif result.rejected_points:
                what = "metrics: collector %s takes pushes%s, but rejected %d data points: %s"
                log.warning(what, url, lost, result.rejected_points, result.reason)
            else:
                log.info("metrics: collector %s takes pushes%s", url, lost)
        self._failed_since = 0 if outcome is PushOutcome.ACCEPTED else self._failed_since + 1

    # One attempt.

    def _attempt(self, body: bytes) -> _Result:
        settings, target = self._settings, self._settings.target
        until_s = time.monotonic() + settings.timeout_s
        connection: HTTPConnection
        if target.is_tls:
            connection = HTTPSConnection(target.host, target.port, timeout=settings.timeout_s, context=settings.tls)
        else:
            connection = HTTPConnection(target.host, target.port, timeout=settings.timeout_s)
        try:
            headers = {
                **settings.headers(),
                "Content-Type": CONTENT_TYPE,
                "Content-Encoding": "gzip",
                "User-Agent": self._agent,
                "Connection": "close",
            }
            connection.connect()
            with connection.sock as sock:
                connection.sock = _TimedSocket(sock, until_s)
                connection.request("POST", target.path, body, headers)
                response = connection.getresponse()
                return _result_of(response, response.read(RESPONSE_BYTES_MAX))
        except ConfigError as error:
            return _Result(PushOutcome.FAILED, str(error))
        except TimeoutError:
            return _Result(PushOutcome.FAILED, f"no answer within {settings.timeout_s:g} s")
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a malformed length
            return _Result(PushOutcome.FAILED, _printable(str(error) or type(error).__name__))
        finally:
            connection.close()


class _TimedSocket:
    """A socket as `http.client` uses it, with one time limit for all that it sends and receives."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        """Take a connected socket, which stays its owner's; `until_s`: monotonic."""
        self._sock = sock
        self._until_s = until_s

    def limited(self) -> socket.socket:
        """Return the socket, limited to the time that is left.

        Raises:
            TimeoutError: none is left.
        """
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._sock

    def sendall(self, data: bytes) -> None:
        """Send."""
        self.limited().sendall(data)

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        """Return a reader."""
        return io.BufferedReader(_TimedReader(self))

    def close(self) -> None:
        """Do nothing: `http.client` closes before the answer is read."""


class _TimedReader(io.RawIOBase):
    """Reader of the bytes that a timed socket receives."""

    def __init__(self, sock: _TimedSocket) -> None:
        """Take the socket."""
        super().__init__()
        self._sock = sock

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer
        """Receive."""
        return self._sock.limited().recv_into(buffer)


def _result_of(response: HTTPResponse, body: bytes) -> _Result:
    status = response.status
    if status == 200:
        points, text = _partial_success(body)
        return _Result(PushOutcome.ACCEPTED, text, rejected_points=points)
    text = f"HTTP {status} {_printable(response.reason)}{_error_text(response, body)}"
    if status not in RETRYABLE:
        return _Result(PushOutcome.REJECTED, text)
    return _Result(PushOutcome.FAILED, text, _seconds(response.getheader("Retry-After", "")))


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 0 if there is none."""
    text = retry_after.strip()
    try:
        seconds = float(text) if text.isascii() and text.isdigit() else _until(text)
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def _until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


def _partial_success(body: bytes) -> tuple[int, str]:
    """Return the number of rejected data points in a response, and the reason."""
    points, text = 0, ""
    try:
        for number, value in fields_of(body):
            if number == _PARTIAL_SUCCESS and isinstance(value, bytes):
                for inner, found in fields_of(value):
                    if inner == _REJECTED_POINTS and isinstance(found, int):
                        points = found
                    elif inner == _ERROR_MESSAGE and isinstance(found, bytes):
                        text = _printable(found.decode("utf-8", "replace"))
    except ValueError:
        return 0, ""
    return (points, text) if points < 1 << 63 else (0, text)


def _error_text(response: HTTPResponse, body: bytes) -> str:
    """Return the error message in a response, with ": " before it; "" if it has none."""
    text = body.decode("utf-8", "replace")
    if CONTENT_TYPE in response.getheader("Content-Type", ""):
        try:
            found = [value for number, value in fields_of(body) if number == _STATUS_MESSAGE]
        except ValueError:
            found = []
        text = found[0].decode("utf-8", "replace") if found and isinstance(found[0], bytes) else ""
    reason = _printable(text.strip())
    return f": {reason}" if reason else ""


def _printable(text: str) -> str:
    """Return a text of a peer as it may be logged."""
    return "".join(character if character.isprintable() else " " for character in text[:_TEXT_CHARACTERS])
