"""A node with a stopwatch: measures its turns and jobs, and answers questions of other threads between them.

    listener thread ──► ask(Question) ──► wake ──► a turn ──► a slice of the collection ──► … ──► question.reply
                                                   └─ the node's own work goes first

Only the loop's thread touches the node. A collection advances by SLICE_NS after each turn, so it delays no message for
longer; while one is in progress, the loop does not wait. Questions of one kind that wait at the same time get the same
answer.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic_ns, thread_time_ns

from tandemq.boundary import Event, Job, JobDone, Now, Turn
from tandemq.telemetry.buckets import SECONDS_BOUNDS, DurationBuckets
from tandemq.telemetry.collection import Collection, MonitoredNode
from tandemq.telemetry.exposition import RenderedFamily, TextRenderer
from tandemq.telemetry.families import Batch, counter, gauge, histogram, single
from tandemq.telemetry.otlp import OtlpRenderer

SLICE_NS = 500_000
SYNC_JOB = "flush"
"""Name of the jobs that sync the commit log."""
SYNC_SECONDS = histogram(
    "tandemq_store_sync_seconds", "Duration of syncs of the commit log, with the wait for them.", bounds=SECONDS_BOUNDS
)
SERIES = gauge("tandemq_metrics_series", "Series of this collection before this one.")
DROPPED = counter(
    "tandemq_metrics_dropped_series_total",
    "Series left out because of metricsOtelCardinalityLimit, in all collections.",
)
COLLECT_SECONDS = histogram(
    "tandemq_metrics_collect_seconds", "Time of the event loop that a collection took.", bounds=SECONDS_BOUNDS
)
SLICE_SECONDS = histogram(
    "tandemq_metrics_slice_seconds", "Duration of the slices in which collections run.", bounds=SECONDS_BOUNDS
)
CPU_SECONDS = counter("tandemq_metrics_cpu_seconds_total", "CPU time of the event loop that collections took.")
LONGEST_SLICE = gauge(
    "tandemq_metrics_longest_slice_seconds", "CPU time of the longest slice of the collection before this one."
)


class QuestionKind(Enum):
    """Kind of a question to the event loop."""

    PAGE = "page"
    """All metrics, as text."""
    OTLP = "otlp"
    """All metrics, for OTLP."""
    READINESS = "readiness"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question; the part that was asked for."""

    kind: QuestionKind
    families: Sequence[RenderedFamily] = ()
    reasons: Sequence[str] = ()
    """Why the node is not ready."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question. `reply` is called on the loop's thread, once, and must return at once."""

    kind: QuestionKind
    reply: Callable[[Answer], None]


class MeteredNode:
    """The node inside, measured; see `boundary.Node`."""

    def __init__(
        self, node: MonitoredNode, wake: Callable[[], None], series_max: int, otlp: OtlpRenderer | None = None
    ) -> None:
        """Begin to measure.

        Args:
            node: the node.
            wake: makes the loop run a turn; from any thread.
            series_max: maximum number of series per family of a page.
            otlp: the renderer of answers for OTLP; without one nobody may ask for them.
        """
        self.node = node
        self.last_turn_ns = monotonic_ns()
        """When the last turn ended, monotonic; other threads read it."""
        self._wake = wake
        self._text = TextRenderer(series_max)
        self._otlp = otlp
        self._questions: deque[Question] = deque()
        self._waiting: list[Question] = []
        self._collection: Collection | None = None
        self._collected_kind = QuestionKind.PAGE
        self._collecting_ns = 0
        self._cpu_ns = self._longest_ns = self._last_longest_ns = 0
        """CPU time of all slices, of the longest one of the collection in progress, and of the one before."""
        self._syncs_begun: dict[Job, int] = {}
        self._syncs = DurationBuckets()
        self._collections = DurationBuckets()
        self._slices = DurationBuckets()
        node.metrics.add(self._collect)

    def ask(self, question: Question) -> None:
        """Ask from another thread."""
        self._questions.append(question)
        self._wake()

    # A turn.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        began_ns = monotonic_ns()
        if self._syncs_begun:
            self._note_syncs(events, began_ns)
        turn = self.node.turn(received, events, now)
        ended_ns = self.last_turn_ns = monotonic_ns()
        self.node.turn_took(ended_ns - began_ns)
        for job in turn.jobs:
            if job.name == SYNC_JOB:
                self._syncs_begun[job] = ended_ns
        if self._is_asked:
            self._answer(now)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`; at once while a collection is in progress."""
        return 0 if self._is_asked else self.node.deadline_ms()

    @property
    def _is_asked(self) -> bool:
        return bool(self._questions or self._waiting)

    def _note_syncs(self, events: Sequence[Event], now_ns: int) -> None:
        for event in events:
            if isinstance(event, JobDone):
                begun_ns = self._syncs_begun.pop(event.job, None)
                if begun_ns is not None:
                    self._syncs.add(now_ns - begun_ns)

    # Questions.

    def _answer(self, now: Now) -> None:
        while self._questions:
            question = self._questions.popleft()
            if question.kind is QuestionKind.READINESS:
                question.reply(Answer(question.kind, reasons=self.node.not_ready(now)))
            else:
                self._waiting.append(question)
        if self._collection is None and self._waiting:
            kind = self._collected_kind = self._waiting[0].kind
            renderer = self._text if kind is QuestionKind.PAGE else self._otlp
            assert renderer is not None, "nobody asks for OTLP without a renderer"
            self._collection = Collection(self.node.metrics, renderer, now)
            self._collecting_ns = self._longest_ns = 0
        if self._collection is not None:
            self._advance(self._collection)

    def _advance(self, collection: Collection) -> None:
        began_ns, cpu_began_ns = monotonic_ns(), thread_time_ns()
        is_complete = False
        while not is_complete and monotonic_ns() - began_ns < SLICE_NS:
            is_complete = collection.step()
        took_ns = monotonic_ns() - began_ns
        self._slices.add(took_ns)
        self._collecting_ns += took_ns
        cpu_ns = thread_time_ns() - cpu_began_ns
        self._cpu_ns += cpu_ns
        self._longest_ns = max(self._longest_ns, cpu_ns)
        if not is_complete:
            return
        self._last_longest_ns = self._longest_ns
        self._collection = None
        self._collections.add(self._collecting_ns)
        kind = self._collected_kind
        answer = Answer(kind, families=collection.families)
        answered = [question for question in self._waiting if question.kind is kind]
        self._waiting = [question for question in self._waiting if question.kind is not kind]
        for question in answered:
            question.reply(answer)

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        yield Batch(SYNC_SECONDS, distributions={(): self._syncs.distribution()})
        yield Batch(COLLECT_SECONDS, distributions={(): self._collections.distribution()})
        yield Batch(SLICE_SECONDS, distributions={(): self._slices.distribution()})
        yield single(CPU_SECONDS, self._cpu_ns / 1e9)
        yield single(LONGEST_SLICE, self._last_longest_ns / 1e9)
        yield single(DROPPED, self._text.dropped + (self._otlp.dropped if self._otlp is not None else 0))
        yield single(SERIES, self._text.series or (self._otlp.series if self._otlp is not None else 0))
