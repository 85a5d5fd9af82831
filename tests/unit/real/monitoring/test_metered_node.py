"""The node with a stopwatch: turns and syncs are measured, and questions are answered in slices."""

from collections.abc import Iterator, Sequence

import pytest

from tandemq.boundary import Event, Job, JobDone, Now, Turn
from tandemq.real.monitoring import metered_node
from tandemq.real.monitoring.metered_node import Answer, MeteredNode, Question, QuestionKind
from tandemq.telemetry.exposition import page
from tandemq.telemetry.families import Batch, Metrics, gauge
from tandemq.telemetry.otlp import OtlpRenderer
from tests.spec import spec
from tests.unit.telemetry.pages import value

SIZE = gauge("tandemq_size", "Size.", "number")


class Clock:
    """A clock that each reading advances."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.step_ns = 1_000

    def __call__(self) -> int:
        self.ns += self.step_ns
        return self.ns


class Node:
    """A node with as many series as it is told to have."""

    def __init__(self, series: int) -> None:
        self.metrics = Metrics({})
        self.metrics.add(self._collect)
        self.series = series
        self.took: list[int] = []
        self.jobs: list[Job] = []

    def turn(self, _received: Sequence[tuple[int, bytes]], _events: Sequence[Event], _now: Now) -> Turn:
        jobs, self.jobs = self.jobs, []
        return Turn(jobs=jobs)

    def deadline_ms(self) -> int | None:
        return 77

    def turn_took(self, duration_ns: int) -> None:
        self.took.append(duration_ns)

    def not_ready(self, _now: Now) -> list[str]:
        return ["it is a test"]

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        yield Batch(SIZE, {(str(number),): number for number in range(self.series)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metered_node, "monotonic_ns", clock)
    return clock


def _ask(metered: MeteredNode, kind: QuestionKind) -> list[Answer]:
    answers: list[Answer] = []
    metered.ask(Question(kind, answers.append))
    return answers


@spec("O03")
def test_collection_advances_by_one_slice_per_turn_and_turns_follow_at_once(clock: Clock) -> None:
    metered = MeteredNode(Node(10_000), lambda: None, 50_000)
    answers = _ask(metered, QuestionKind.PAGE)
    clock.step_ns = metered_node.SLICE_NS // 2
    turns = 0
    while not answers:
        assert metered.deadline_ms() == 0
        before = clock.ns
        metered.turn([], [], Now(0, 0))
        turns += 1
        assert clock.ns - before <= metered_node.SLICE_NS * 5, "the turn, one slice, and its last step"
    assert turns > 10_000 // 200 // 2
    assert metered.deadline_ms() == 77
    text = page(answers[0].families, is_openmetrics=False).decode()
    assert text.count("tandemq_size{") == 10_000
    assert "tandemq_metrics_series 10" in text


def test_questions_that_wait_together_get_the_same_answer(clock: Clock) -> None:
    woken: list[bool] = []
    otlp = OtlpRenderer(50_000, {}, "1", 0)
    metered = MeteredNode(Node(10), lambda: woken.append(True), 50_000, otlp)
    first, second = _ask(metered, QuestionKind.PAGE), _ask(metered, QuestionKind.PAGE)
    pushed, ready = _ask(metered, QuestionKind.OTLP), _ask(metered, QuestionKind.READINESS)
    for _ in range(50):
        metered.turn([], [], Now(0, 0))
    assert first == second
    assert len(first) == len(pushed) == len(ready) == 1
    assert ready[0].reasons == ["it is a test"]
    assert b"tandemq_size{" in page(first[0].families, is_openmetrics=False)
    assert b"tandemq_size" in otlp.request(pushed[0].families)
    assert len(woken) == 4
    assert clock.ns > 0


def test_turns_and_syncs_are_measured(clock: Clock) -> None:
    node = Node(0)
    metered = MeteredNode(node, lambda: None, 50_000)
    sync, other = Job("flush", lambda: None), Job("scrub", lambda: None)
    node.jobs = [sync, other]
    metered.turn([], [], Now(0, 0))
    assert node.took == [1_000]
    clock.ns += 20_000_000
    metered.turn([], [JobDone(sync), JobDone(other)], Now(0, 0))
    answers = _ask(metered, QuestionKind.PAGE)
    while not answers:
        metered.turn([], [], Now(0, 0))
    text = page(answers[0].families, is_openmetrics=False).decode()
    assert value(text, "tandemq_store_sync_seconds_count") == 1
    assert value(text, "tandemq_store_sync_seconds_sum") == pytest.approx(0.02, rel=0.01)
