"""Epochs of a log from the readable members: a dead master, or one not to be asked, is no error, and a lagging slave
proves only what it knows."""

import json
from typing import Any

import pytest

from tandemq.boundary import Now
from tandemq.client.core.operations import GetTime, Invoke, InvokeAll, Steps
from tandemq.codec.record.record import encode_record
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.epochs import Epochs, find_epochs, find_rewritten
from tandemq.spark.sources.cluster.limits import QueueEnd
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.stream_reader import _checked_epochs
from tests.spark.logs import HOST_V4

QUEUE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
LAYOUT = QueueLayout((QUEUE,), {"a": {0: "master", 1: "lags", 2: "slave"}})
PAIRS = {"master": ((1, 0), (2, 1000), (3, 9000)), "lags": ((1, 0),), "slave": ((1, 0), (2, 1000))}
"""Epochs that each member knows; record `n` of the queue is at log offset 200 n."""
HELD = {"master": 50, "lags": 4, "slave": 40}
REFUSED = Command(ResponseCode.NO_PERMISSION)


class Members:
    """A broker group whose second slave serves no consumers, as in a group with a registry."""

    def __init__(self, *dead: str) -> None:
        self.dead = dead
        self.asked: set[str] = set()

    def run(self, steps: Steps[Any]) -> Any:
        """Return the result of an operation."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, GetTime):
                    step = steps.send(Now(0, 0))
                    continue
                asks = step.requests if isinstance(step, InvokeAll) else [step]
                answers = [self.answer(ask) for ask in asks if isinstance(ask, Invoke)]
                if isinstance(step, InvokeAll):
                    step = steps.send(answers)
                elif isinstance(answers[0], NotConnected):
                    step = steps.throw(answers[0])
                else:
                    step = steps.send(answers[0])
        except StopIteration as over:
            return over.value

    def answer(self, ask: Invoke) -> Command | NotConnected:
        self.asked.add(ask.address)
        if ask.address in self.dead:
            return NotConnected(f"{ask.address} is dead")
        if ask.command.code == RequestCode.GET_BROKER_EPOCH_CACHE:
            epoch_list = [{"epoch": epoch, "startOffset": start} for epoch, start in PAIRS[ask.address]]
            return Command(ResponseCode.SUCCESS, body=json.dumps({"epochList": epoch_list}).encode())
        if ask.address == "slave" and ask.command.code == RequestCode.PULL_MESSAGE:
            return REFUSED
        at, end = int(ask.command.fields["queueOffset"]), HELD[ask.address]
        if at >= end:
            return Command(ResponseCode.PULL_NOT_FOUND, fields={"nextBeginOffset": str(end)})
        return Command(
            ResponseCode.SUCCESS,
            body=encode_record(
                topic=b"T",
                queue_id=0,
                queue_offset=at,
                log_offset=at * 200,
                body=b"x",
                properties=b"",
                flag=0,
                sys_flag=0,
                born_ms=1,
                born_host=HOST_V4,
                store_ms=1,
                store_host=HOST_V4,
                reconsume_times=0,
            ),
        )


@pytest.mark.parametrize(
    ("read_from", "dead", "epoch", "is_final"),
    [
        (ReadFrom.ANY, (), 3, True),
        (ReadFrom.MASTER, (), 3, True),
        (ReadFrom.ANY, ("master",), 2, False),
        (ReadFrom.MASTER, ("master",), 2, False),
        (ReadFrom.SLAVE, (), 2, False),
        (ReadFrom.SLAVE, ("master", "slave"), 1, False),
        (ReadFrom.SLAVE, ("lags", "slave"), 0, False),
    ],
)
def test_epochs_come_from_the_master_unless_it_is_dead_or_only_slaves_are_read(
    read_from: ReadFrom, dead: tuple[str, ...], epoch: int, is_final: bool
) -> None:
    members = Members(*dead)
    found = members.run(find_epochs(LAYOUT, read_from))["a"]
    assert (found.epoch, found.is_final) == (epoch, is_final)
    assert ("master" in members.asked) is (read_from is not ReadFrom.SLAVE)


@pytest.mark.parametrize(
    ("read_from", "dead", "offset", "rewritten"),
    [
        (ReadFrom.SLAVE, (), 5, False),
        (ReadFrom.SLAVE, (), 6, True),
        (ReadFrom.SLAVE, (), 45, False),
        (ReadFrom.SLAVE, ("lags",), 6, True),
        (ReadFrom.MASTER, (), 45, True),
        (ReadFrom.ANY, ("master",), 6, True),
        (ReadFrom.ANY, ("master",), 45, False),
    ],
)
def test_message_before_a_position_comes_from_readable_members_without_lag(
    read_from: ReadFrom, dead: tuple[str, ...], offset: int, rewritten: bool
) -> None:
    members = Members(*dead)
    position, epochs = Position({QUEUE: offset}, {"a": 1}), {"a": Epochs(PAIRS["slave"])}
    found = members.run(find_rewritten(LAYOUT, position, epochs, read_from))
    assert found == ([QUEUE] if rewritten else [])
    assert ("master" in members.asked) is (read_from is not ReadFrom.SLAVE)


def test_history_without_an_answering_member_is_an_error() -> None:
    position, epochs = Position({QUEUE: 6}, {"a": 1}), {"a": Epochs(PAIRS["slave"])}
    with pytest.raises(NotConnected, match="lags is dead"):
        Members("lags", "slave").run(find_rewritten(LAYOUT, position, epochs, ReadFrom.SLAVE))


@pytest.mark.parametrize(
    ("end", "known", "epoch"),
    [
        (QueueEnd(60, is_final=False), 2, 2),
        (QueueEnd(60, is_final=True), 2, 2),
        (QueueEnd(40, is_final=False), 2, 1),  # the message before the position is not there yet, and not checked
        (QueueEnd(40, is_final=True), 2, 2),
        (QueueEnd(60, is_final=False), 0, 1),  # a slave that does not know the first epoch yet
    ],
)
def test_position_gets_a_later_epoch_once_the_message_before_it_was_checked(
    end: QueueEnd, known: int, epoch: int
) -> None:
    before = Position({QUEUE: 50, OTHER: 7}, {"a": 1, "b": 4})
    epochs = {"a": Epochs(((known, 0),) if known else ())}
    assert _checked_epochs(before, {QUEUE: end}, epochs) == {"a": epoch, "b": 4}
