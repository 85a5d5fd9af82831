"""Epochs of the logs of broker groups, and what has been rewritten since a position was taken.

Source: docs/guides/pipeline.md, "Offsets"; docs/internals/failover.md.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tandemq.client.core.operations import Invoke, Steps, ask_all, current_time, json_object, request, run_together
from tandemq.client.core.routes import MASTER_ID
from tandemq.errors import NetworkError, ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.spark.sources.cluster.lookups import MESSAGES_AT_ONCE, first_from
from tandemq.spark.sources.cluster.members import Members, QueueLayout, ordered
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import ReadFrom


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of a broker group's log as (epoch, first log offset), ascending; empty if it has none."""

    pairs: tuple[tuple[int, int], ...] = ()
    is_final: bool = False
    """Whether they come from the master: a slave that lags may not know the present one."""
    answer_ms: int | None = field(default=None, compare=False)
    """How long the answers of the group's members took; None: none came."""

    @property
    def epoch(self) -> int:
        """Present epoch; 0 if there is none."""
        return self.pairs[-1][0] if self.pairs else 0

    def at(self, log_offset: int) -> int:
        """Return the epoch of a record by its log offset; 0 if there is none."""
        index = bisect_right([start for _, start in self.pairs], log_offset)
        return self.pairs[index - 1][0] if index else 0

    def start_after(self, epoch: int) -> int | None:
        """Return the log offset from which records belong to later epochs; None if there is no later one."""
        return next((start for number_, start in self.pairs if number_ > epoch), None)


def find_epochs(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[str, Epochs]]:
    """Return the epochs of each broker group: from its master or, if that is down or only slaves are read, from the
    slave with the latest one.

    A group that returns no epochs has none: RocketMQ brokers have epochs in controller mode only.

    Raises:
        ProtocolError: a response is malformed.
    """
    names = sorted({queue.broker_name for queue in layout.queues})
    found = yield from run_together([_epochs_of(layout.members[name], read_from) for name in names])
    return dict(zip(names, found, strict=True))


def _epochs_of(members: Members, read_from: ReadFrom) -> Steps[Epochs]:
    addresses = [address for id_, address in members.items() if id_ != MASTER_ID or read_from is not ReadFrom.SLAVE]
    began = yield from current_time()
    answers = yield from ask_all(
        [Invoke(address, request(RequestCode.GET_BROKER_EPOCH_CACHE)) for address in addresses]
    )
    took_ms = (yield from current_time()).mono_ms - began.mono_ms
    responses = {
        address: answer for address, answer in zip(addresses, answers, strict=True) if isinstance(answer, Command)
    }
    if members.get(MASTER_ID) in responses:
        return Epochs(_pairs(responses[members[MASTER_ID]]), is_final=True, answer_ms=took_ms)
    found = [Epochs(_pairs(answer), answer_ms=took_ms) for answer in responses.values()]
    return max(found, key=lambda epochs: epochs.epoch, default=Epochs())


def _pairs(answer: Command) -> tuple[tuple[int, int], ...]:
    if answer.code != ResponseCode.SUCCESS:
        return ()
    try:
        pairs = [(int(item["epoch"]), int(item["startOffset"])) for item in json_object(answer)["epochList"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the epochs of a log cannot be read: {error!r}") from error
    return tuple(sorted(pairs))


def find_rewritten(
    layout: QueueLayout, position: Position, epochs: Mapping[str, Epochs], read_from: ReadFrom
) -> Steps[list[MessageQueue]]:
    """Return the queues whose messages before a position have changed, because the log was truncated and rewritten.

    The criterion is the epoch of the message before the position: it is later than the epoch in which the position was
    taken. If that message is gone, or not yet copied to a slave, the queue counts as unchanged. The master is asked
    first, unless only slaves are read.

    Raises:
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    first = ReadFrom.SLAVE if read_from is ReadFrom.SLAVE else ReadFrom.MASTER
    starts: dict[MessageQueue, int] = {}
    """Log offsets from which records belong to a later epoch."""
    for queue in position.offsets:
        epoch = position.epoch(queue.broker_name)
        later = epochs.get(queue.broker_name, Epochs()).start_after(epoch) if epoch else None
        if later is not None and position.offsets[queue] > 0:
            starts[queue] = later
    operations = [
        _message_before(queue, position.offsets[queue], ordered(layout.members[queue.broker_name], first))
        for queue in starts
    ]
    messages = yield from run_together(operations, MESSAGES_AT_ONCE)
    return [
        queue
        for (queue, later), message in zip(starts.items(), messages, strict=True)
        if message is not None and message.log_offset >= later
    ]


def _message_before(queue: MessageQueue, offset: int, addresses: Sequence[str]) -> Steps[StoredMessage | None]:
    """Return the message before an offset, from the first member that has it; None if no answering member has it."""
    failures: list[NetworkError] = []
    for address in addresses:
        try:
            message = yield from first_from(queue, offset - 1, [address])
        except NetworkError as error:
            failures.append(error)
            continue
        if message is not None and message.queue_offset < offset:
            return message
    if len(failures) == len(addresses):
        raise failures[0]
    return None
