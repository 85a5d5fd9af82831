"""A static topic over the group and a broker beside it; its logical queues move while clients use it and faults happen.

    administrator  create ─► … ─► gains, loses, ends, places ─► older mapping refused
    producers      route ─► leader of a logical queue ─► send; 501 or no response: the route again
    readers        one per logical queue: offset committed last ─► pull, commit, pull …; at times from there, or from 0

The administrator's tool dies after some steps, and another one repeats all of them. The clients have one connection to
each broker and one request at a time in flight, as `tandemq.client` has no logical queues. What they observe is checked
by `chaos.logical_history`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from random import Random

from chaos.logical_history import Answer, Delivery, LogicalHistory
from chaos.requests import QUEUES, RETRY_S, TOPIC, Requests, wall_ms
from chaos.static_administrator import Administrator
from tandemq.codec.record.record import decode_messages, parse_message_id
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import KEYS, UNIQ_KEY, encode_properties
from tandemq.run.ports import Setting

READERS = "chaos-static"
NEIGHBOUR_SETTINGS: dict[str, Setting] = {"brokerRole": "ASYNC_MASTER", "autoCreateTopicEnable": "false"}
"""Settings of the broker beside the group: it has no slave, and no topic but the static one."""
_PRODUCERS = 2
_PACE_S = 0.01
_TRIES = 5
_ROUTE_S = 1.0
"""Age of a route that is fetched again."""
_HOLD_MS = 500
_COMMIT_EVERY_S, _AGAIN_S = 1.0, (2.0, 6.0)
_FROM_START = 0.3
_SUBSCRIPTION, _SUSPEND = 4, 2
"""Bits of a pull's sysFlag."""
_STORED: dict[int, str] = {
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
"""Codes of stored messages that may still be lost."""


class _Leaders:
    """The leaders of logical queues as one client knows them."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._known: dict[int, tuple[str, str]] = {}
        self._until_s = 0.0

    def of(self, number: int) -> tuple[str, str] | None:
        """Return group and address of the leader of a logical queue."""
        if time.monotonic() >= self._until_s:
            self._known = self._requests.leaders() or self._known
            self._until_s = time.monotonic() + _ROUTE_S
        return self._known.get(number)

    def doubt(self) -> None:
        """Fetch the route again with the next request: a broker has refused, or not answered."""
        self._until_s = 0.0


class Producer:
    """Sends to logical queues, one message after the other."""

    def __init__(self, name_server: str, name: str, history: LogicalHistory, random: Random) -> None:
        self._requests = Requests(name_server)
        self._leaders = _Leaders(self._requests)
        self._name = name
        self._history = history
        self._random = random
        self._count = 0

    def run(self, is_over: threading.Event) -> None:
        """Send until `is_over`."""
        while not is_over.wait(_PACE_S):
            self.send(self._random.randrange(QUEUES))

    def send(self, number: int, tries: int = _TRIES) -> bool:
        """Send a message to a logical queue; returns whether it was answered SEND_OK with its offset."""
        self._count += 1
        body = f"{self._name}-{number}-{self._count}"
        self._history.sending(body, number)
        for _ in range(tries):
            answer = self._attempt(body, number)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return int(answer.fields["queueOffset"]) >= 0
            if answer is not None and answer.code in _STORED:
                return False
            self._leaders.doubt()
            time.sleep(RETRY_S)
        return False

    def _attempt(self, body: str, number: int) -> Command | None:
        leader = self._leaders.of(number)
        if leader is None:
            return None
        group, address = leader
        sent_s = time.monotonic()
        answer = self._requests.ask(
            address, RequestCode.SEND_MESSAGE_V2, _send_fields(group, number, body), body.encode()
        )
        code = None if answer is None else answer.code
        if answer is not None and code == ResponseCode.SUCCESS:
            self._history.counted("SEND_OK")
            _, log_offset = parse_message_id(answer.fields["msgId"])
            offset = int(answer.fields["queueOffset"])
            self._history.answered(Answer(body, number, group, sent_s, time.monotonic(), offset, log_offset))
        else:
            self._history.counted("no answer" if code is None else _STORED.get(code, f"code {code}"))
        return answer

    def finish(self, until_s: float) -> list[int]:
        """Send a last message to each logical queue until it has its offset; returns the queues that take none."""
        left = []
        for number in range(QUEUES):
            while not self.send(number):
                if time.monotonic() > until_s:
                    left.append(number)
                    break
                time.sleep(RETRY_S)
        self._requests.close()
        return left


class Reader:
    """Reads one logical queue from its start, commits, and begins again from time to time."""

    def __init__(
        self,
        name_server: str,
        number: int,
        groups: Mapping[str, str],
        history: LogicalHistory,
        deaths: Callable[[], int],
    ) -> None:
        """`groups`: names by the host of their brokers' addresses. `deaths`: returns how many brokers have died."""
        self._requests = Requests(name_server)
        self._leaders = _Leaders(self._requests)
        self._number = number
        self._groups = groups
        self._history = history
        self._deaths = deaths
        self._random = Random(number)
        self._next = 0
        self._committed = -1

    def run(self, drained: threading.Event) -> None:
        """Read until everything has been delivered; then commit the end, and ask for it."""
        commit_s, again_s = 0.0, self._after(*_AGAIN_S)
        while not drained.is_set():
            if time.monotonic() > again_s:
                again_s = self._after(*_AGAIN_S)
                self._start_over(drained)
            if time.monotonic() > commit_s and self._next > max(0, self._committed):
                commit_s = time.monotonic() + _COMMIT_EVERY_S
                self._commit()
            if not self._pull():
                drained.wait(RETRY_S)

    def finish(self, until_s: float) -> str:
        """Commit the end and look it up; returns "", or what could not be done."""
        while self._committed < self._next and not self._commit():
            if time.monotonic() > until_s:
                return f"the end of logical queue {self._number} cannot be committed"
            time.sleep(RETRY_S)
        while (found := self._query()) is None:
            if time.monotonic() > until_s:
                return f"the offset of logical queue {self._number} cannot be looked up"
            time.sleep(RETRY_S)
        self._requests.close()
        return "" if found == self._committed else f"logical queue {self._number} is at {found}, not {self._committed}"

    def _after(self, low: float, high: float) -> float:
        return time.monotonic() + self._random.uniform(low, high)

    def _ask(self, code: int, fields: Mapping[str, object]) -> Command | None:
        leader = self._leaders.of(self._number)
        if leader is None:
            return None
        group, address = leader
        place = {"consumerGroup": READERS, "topic": TOPIC, "queueId": self._number, "bname": group}
        answer = self._requests.ask(address, code, {**place, **fields})
        if answer is None or answer.code in (ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.NO_PERMISSION):
            self._leaders.doubt()
        return answer

    def _start_over(self, drained: threading.Event) -> None:
        while not drained.is_set():
            found = self._query()
            if found is not None:
                self._committed = found
                self._next = 0 if self._random.random() < _FROM_START else max(0, found)
                return
            drained.wait(RETRY_S)

    def _query(self) -> int | None:
        """Return the committed offset as a broker reports it, -1 if it has none; None without a response."""
        answer = self._ask(RequestCode.QUERY_CONSUMER_OFFSET, {"setZeroIfNotFound": "false"})
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            return None
        offset = int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None
        self._history.found(self._number, offset, self._deaths())
        return -1 if offset is None else offset

    def _commit(self) -> bool:
        offset, sent_s, deaths = self._next, time.monotonic(), self._deaths()
        self._history.committing(self._number, offset, sent_s)
        answer = self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": offset})
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        self._history.commit_confirmed(self._number, offset, sent_s, deaths)
        self._committed = offset
        return True

    def _pull(self) -> bool:
        """Pull once; returns whether it is worth to pull again at once."""
        fields = {
            "queueOffset": self._next,
            "maxMsgNums": 32,
            "sysFlag": _SUBSCRIPTION | _SUSPEND,
            "commitOffset": 0,
            "suspendTimeoutMillis": _HOLD_MS,
            "subVersion": 1,
            "expressionType": "TAG",
            "subscription": "*",
        }
        answer = self._ask(RequestCode.PULL_MESSAGE, fields)
        if answer is None or answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            return False
        if answer.code == ResponseCode.SUCCESS and not self._take(answer):
            return False
        following = int(answer.fields["nextBeginOffset"])
        if following < self._next:
            self._history.sent_back(self._number, self._next, following)
        has_moved, self._next = following != self._next, following
        return has_moved

    def _take(self, answer: Command) -> bool:
        """Record the messages of a response; return False if its broker does not know the topic as a static one."""
        if "offsetDelta" not in answer.fields:
            self._history.unmapped(self._number)
            return False
        delta, expected = int(answer.fields["offsetDelta"]), self._next
        for message in decode_messages(answer.body):
            offset = message.queue_offset + delta
            group = self._groups[message.store_host.rpartition(":")[0]]
            body = message.body.decode(errors="replace")
            delivery = Delivery(self._number, offset, group, message.queue_id, message.queue_offset, body)
            self._history.received(delivery, expected)
            expected = offset + 1
        return True


class StaticTopicClients:
    """The administrator, the producers and the readers; `work` has what their threads do, by name."""

    def __init__(
        self,
        name_server: str,
        groups: Mapping[str, str],
        random: Random,
        deaths: Callable[[], int],
        *,
        may_go_back: bool,
    ) -> None:
        """`groups`: see `Reader`. `may_go_back`: see `LogicalHistory`."""
        self.history = LogicalHistory(may_go_back=may_go_back)
        first, second = sorted(set(groups.values()))
        self._administrator = Administrator(
            Requests(name_server), (first, second), self.history, Random(random.random())
        )
        self._producers = [
            Producer(name_server, f"s{number}", self.history, Random(random.random())) for number in range(_PRODUCERS)
        ]
        self._last = Producer(name_server, "last", self.history, random)
        self._readers = [Reader(name_server, number, groups, self.history, deaths) for number in range(QUEUES)]

    def create(self) -> None:
        """Create the topic."""
        self._administrator.create()

    def senders(self, is_over: threading.Event) -> dict[str, Callable[[], None]]:
        """Return what the threads do that end with `is_over`, by name."""
        found: dict[str, Callable[[], None]] = {"static topic": lambda: self._administrator.run(is_over)}
        for number, producer in enumerate(self._producers):
            found[f"static producer {number}"] = lambda producer=producer: producer.run(is_over)  # type: ignore[misc]
        return found

    def readers(self, drained: threading.Event) -> dict[str, Callable[[], None]]:
        """Return what the threads do that end when all is `drained`, by name."""
        found: dict[str, Callable[[], None]] = {}
        for number, reader in enumerate(self._readers):
            found[f"static reader {number}"] = lambda reader=reader: reader.run(drained)  # type: ignore[misc]
        return found

    def send_last(self, seconds: float) -> list[str]:
        """Send a last message to each logical queue, once nothing moves; return violations."""
        left = self._last.finish(time.monotonic() + seconds)
        return [f"I14: logical queues {left} take no messages {seconds:g} s after the last fault"] if left else []

    def commit_last(self, seconds: float) -> list[str]:
        """Commit the ends and look them up, once the readers have ended; return violations."""
        until_s = time.monotonic() + seconds
        return [f"I23: {problem}" for reader in self._readers if (problem := reader.finish(until_s))]


def _send_fields(group: str, number: int, body: str) -> dict[str, object]:
    return {
        "a": "chaos-static",
        "b": TOPIC,
        "c": "TBW102",
        "d": QUEUES,
        "e": number,
        "f": 0,
        "g": wall_ms(),
        "h": 0,
        "i": encode_properties({KEYS: body, UNIQ_KEY: f"id-{body}"}),
        "j": 0,
        "k": "false",
        "m": "false",
        "n": group,
    }
