"""The recorder of `make chaos`: what it writes is a history in which the judge finds what the clients observed."""

import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import kills, run
from chaos.assignments import SHARED_MS
from chaos.history import History, Place
from chaos.pops import INVISIBLE_S, PopHistory
from chaos.recorder import Recorder, now_ms
from chaos.run import judged
from chaos.transactions import TransactionHistory
from judge.verdict import Verdict, judge
from tandemq.model.transactions import TransactionState

GROUP = "chaos"


class Observed:
    """The observations of one run, with their recorder."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.recorder = Recorder(
            self.file, "Chaos", "broker-a", run="seed 1", system="TandemQ", promises={"early_ms": 2.0}
        )
        self.history = History(recorder=self.recorder, group=GROUP)
        self.transactions = TransactionHistory(recorder=self.recorder)
        self.pops = PopHistory(elects=True, recorder=self.recorder)

    def send(self, body: str, place: Place, *, due: float = 0.0, is_timed: bool = False) -> None:
        self.history.sending(body, "a", due=due, is_timed=is_timed)
        self.history.answered(body, "SEND_OK", place, is_ok=True)

    def receive(self, body: str, place: Place, *, is_retry: bool = False) -> None:
        self.history.received(body, "a", body, place, is_retry=is_retry)

    def verdict(self) -> Verdict:
        return judge(self.file.getvalue().splitlines(keepends=True))


def whole_run() -> Observed:
    """Return a run in which everything is as it should be."""
    seen = Observed()
    for offset in range(3):
        seen.send(f"a-{offset}", Place(0, offset))
    seen.send("a-3", Place(1, 0), due=now_ms() / 1_000)
    seen.send("a-4", Place(0, 0), due=now_ms() / 1_000, is_timed=True)
    seen.send("a-5", Place(0, 1), due=now_ms() / 1_000 + 60, is_timed=True)
    seen.history.recalling("a-5")
    seen.history.recall_confirmed("a-5")
    seen.history.sending("t-1", "t", is_half=True)
    seen.transactions.half_stored("t-1")
    seen.transactions.decided("t-1", TransactionState.COMMIT)
    seen.recorder.polled(seen.recorder.queue(0), [(0, "a-0", "a"), (1, "a-1", "a"), (2, "a-2", "a")], first=0)
    for offset in range(3):
        seen.receive(f"a-{offset}", Place(0, offset))
    seen.history.sent_back("a-1", Place(0, 1))
    seen.receive("a-1", Place(0, 0), is_retry=True)
    seen.receive("a-3", Place(1, 0))
    seen.receive("a-4", Place(1, 1))
    seen.history.received("t-1", "t", "t-1", Place(2, 0))
    seen.pops.received("a-0", Place(0, 0), time.time())
    op = seen.pops.acknowledging(Place(0, 0))
    seen.pops.outcome(op, is_confirmed=True)
    for _ in range(2):
        op = seen.recorder.asking_offset(GROUP, seen.recorder.queue(0))
        seen.recorder.offset(op, 3, "broker-a-0")
    return seen


def end(seen: Observed, *bodies: str) -> Verdict:
    """Record the content of queue 0, and judge."""
    seen.recorder.stored("broker-a-0", [(0, offset, body, "a") for offset, body in enumerate(bodies)])
    seen.recorder.settled()
    return seen.verdict()


def test_run_without_violations_has_no_anomaly() -> None:
    verdict = end(whole_run(), "a-0", "a-1", "a-2")
    assert not verdict.anomalies
    assert not verdict.not_judged


def reuse_offset(seen: Observed) -> None:
    seen.history.sending("a-9", "a")
    seen.history.answered("a-9", "SEND_OK", Place(0, 2), is_ok=True)
    seen.history.received("a-9", "a", "a-9", Place(3, 0))


def deliver_unsent(seen: Observed) -> None:
    seen.receive("a-10", Place(3, 0))


def deliver_recalled(seen: Observed) -> None:
    seen.receive("a-5", Place(3, 0))


def roll_back_and_deliver(seen: Observed) -> None:
    seen.history.sending("t-2", "t", is_half=True)
    seen.transactions.half_stored("t-2")
    seen.transactions.decided("t-2", TransactionState.ROLLBACK)
    seen.history.received("t-2", "t", "t-2", Place(3, 0))


def lose_commit(seen: Observed) -> None:
    seen.history.sending("t-2", "t", is_half=True)
    seen.transactions.half_stored("t-2")
    seen.transactions.decided("t-2", TransactionState.COMMIT)


def pop_again(seen: Observed) -> None:
    seen.pops.received("a-0", Place(0, 0), time.time())


def move_offset_back(seen: Observed) -> None:
    op = seen.recorder.asking_offset(GROUP, seen.recorder.queue(0))
    seen.recorder.offset(op, 2, "broker-a-1")


def skip_message(seen: Observed) -> None:
    seen.send("a-8", Place(3, 0))
    seen.send("a-9", Place(3, 1))
    seen.receive("a-8", Place(3, 0))
    seen.recorder.polled(seen.recorder.queue(3), [(1, "a-9", "a")], first=0)


@pytest.mark.parametrize(
    ("observe", "rules"),
    [
        (reuse_offset, {"diverging", "order"}),
        (deliver_unsent, {"phantom"}),
        (deliver_recalled, {"early", "recalled-read"}),
        (roll_back_and_deliver, {"aborted-read"}),
        (lose_commit, {"committed-lost"}),
        (pop_again, {"pop-again"}),
        (move_offset_back, {"offset-back"}),
        (skip_message, {"skipped"}),
    ],
)
def test_observation_is_found_by_the_judge(observe: Callable[[Observed], None], rules: set[str]) -> None:
    seen = whole_run()
    observe(seen)
    assert end(seen, "a-0", "a-1", "a-2").counts.keys() == rules


def test_message_that_the_log_lacks_is_found() -> None:
    seen = whole_run()
    assert end(seen, "a-0", "a-1").counts == {"vanished": 1}
    seen = whole_run()
    seen.history.sending("a-9", "a")
    seen.history.answered_without_queue("a-9", 7)
    assert end(seen, "a-0", "a-1", "a-2").counts == {"unseen": 1}


def test_anomalies_of_a_run_are_its_violations(tmp_path: Path) -> None:
    seen = whole_run()
    deliver_unsent(seen)
    path = tmp_path / "history.jsonl"
    path.write_text(seen.file.getvalue(), encoding="utf-8")
    [text] = judged(path)
    number = len(seen.file.getvalue().splitlines())
    assert text == f"judge: 1 phantom, first: a-10 was read and not sent before, lines ({number},) of the history"
    path.write_text("no history", encoding="utf-8")
    [text] = judged(path)
    assert text.startswith("judge: the history cannot be read: line 1: no JSON")


def test_send_without_an_answer_may_have_stored_it() -> None:
    seen = Observed()
    seen.recorder.sending("a", "a-0", due=0.0, is_timed=False, is_half=False)
    seen.recorder.failed("a-0")
    seen.recorder.delivered(GROUP, seen.recorder.queue(0), 0, "a-0", "a")
    assert not seen.verdict().anomalies
    assert json.loads(seen.file.getvalue().splitlines()[2])["type"] == "unknown"


@pytest.mark.parametrize(
    ("command", "words", "complaint"),
    [
        (run.main, ["--history", "x.jsonl", "--runs", "2"], "add --runs 1"),
        (kills.main, ["--role", "elect", "--brokers", "5.3.3"], "add --brokers ours"),
    ],
)
def test_command_says_what_is_wrong(
    command: Callable[[list[str]], int], words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command(words)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("is_returned", "found"), [(False, {"pop-overlap": 1}), (True, {})])
def test_message_popped_within_its_invisible_time_is_found_unless_it_was_sent_back(
    found: dict[str, int], *, is_returned: bool
) -> None:
    seen = Observed()
    seen.send("a-0", Place(0, 0))
    seen.pops.received("a-0", Place(0, 0), time.time())
    if is_returned:
        seen.pops.changed(seen.pops.changing(Place(0, 0), 0.0), is_confirmed=False)
    seen.pops.received("a-0", Place(0, 0), time.time())
    assert seen.verdict().counts == found


def test_message_popped_after_its_invisible_time_is_none() -> None:
    seen = Observed()
    seen.send("a-0", Place(0, 0))
    seen.pops.received("a-0", Place(0, 0), time.time() - INVISIBLE_S - 1)
    seen.pops.received("a-0", Place(0, 0), time.time())
    assert seen.verdict().counts == {}


def test_popped_messages_have_the_time_of_their_pop() -> None:
    seen = Observed()
    seen.pops.received("a-0", Place(0, 0), time.time() - 5)
    line = json.loads(seen.file.getvalue().splitlines()[-1])
    assert 4_900 < line["t"] - line["since"] < 5_100


@pytest.mark.parametrize(("both_s", "found"), [(SHARED_MS / 2_000, {}), (SHARED_MS / 500, {"shared": 1})])
def test_queue_held_by_two_consumers_for_too_long_is_found(both_s: float, found: dict[str, int]) -> None:
    now = [0.0]
    file = io.StringIO()
    promises = {"shared_ms": SHARED_MS}
    recorder = Recorder(
        file, "Chaos", "broker-a", run="seed 1", system="TandemQ", promises=promises, clock=lambda: now[0]
    )
    queue = recorder.queue(0)
    for process in ("shared-1", "shared-2"):
        recorder.holding("chaos-shared", process, [queue])
    now[0] = both_s * 1_000
    recorder.holding("chaos-shared", "shared-1", [])
    assert judge(file.getvalue().splitlines(keepends=True)).counts == found
