"""A cluster without sockets and clock that answers the operations of planners, and counts their round trips.

far = FarCluster({f"T{number}": 10 for number in range(10_000)})
query = far.query(subscribePattern="T.*")       # a StreamReader
query.initialOffset()
far.rounds                                      # requests that are sent together take one round trip
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.connections import Answer
from tandemq.client.core.operations import Await, GetTime, Invoke, InvokeAll, Step, Steps
from tandemq.client.core.routes import BrokerGroup, QueueData, Routes, TopicRoute
from tandemq.codec.record.record import encode_record
from tandemq.errors import NetworkError, NoRoute, NotConnected, TandemError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode as Answered
from tandemq.model.command import Command
from tandemq.spark.sources.cluster import query as query_module
from tandemq.spark.sources.cluster.options import source_options
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.schema import message_schema
from tests.spark.logs import HOST_V4

NAME_SERVER, MASTER = "names:9876", "a:10911"
ATTEMPTS = 5
"""Attempts of an operation that fails with a NetworkError, until its time is over."""


class FarCluster:
    """A name server and one broker."""

    def __init__(
        self,
        topics: Mapping[str, int],
        *,
        messages: int = 0,
        is_ours: bool = False,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """`topics`: number of queues; `messages`: in each queue; `is_ours`: not RocketMQ's, whose brokers and name
        servers know none of our own requests."""
        self.is_ours = is_ours
        self.version = 1
        """Of the routes."""
        self.ms = 0
        """The client's clock."""
        self.queues = dict(topics)
        self.messages = messages
        self.counts: dict[tuple[str, int], int] = {}
        """Messages of single queues, by topic and queue."""
        self.lives: dict[str, int] = {}
        """How often a topic was created again: its messages are others than before."""
        self.listed = set(topics)
        """Topics whose route the name server has."""
        self.is_registered = True
        self.is_up = True
        self.topics_at_once = 1 << 30
        """Topics that one response has the bounds of."""
        self.rounds = 0
        self.requests: dict[Code, int] = {}
        self.most_at_once = 0
        self.on_round: Callable[[], None] = lambda: None
        """Called after each round trip."""
        monkeypatch.setattr(query_module, "cluster_client", lambda *_given: self)

    def stream(self, **options: Any) -> StreamReader:
        """Return the planner of a query; all topics unless the options say otherwise."""
        given = {"nameServer": NAME_SERVER} | {name: str(value) for name, value in options.items()}
        if not {"subscribe", "assign"} & given.keys():
            given.setdefault("subscribePattern", ".*")
        return StreamReader(source_options(given, streaming=True), message_schema())

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        del self.queues[topic]
        self.listed.discard(topic)

    def create(self, topic: str, *messages: int) -> None:
        """Create a topic again, with a queue for each number of messages."""
        self.lives[topic] = self.lives.get(topic, 0) + 1
        self.queues[topic] = len(messages)
        self.counts |= {(topic, queue_id): count for queue_id, count in enumerate(messages)}
        self.listed.add(topic)

    # As `ClusterClient`.

    def run(self, operation: Callable[[Routes], Steps[Any]], timeout_ms: int, *, connect_ms: int | None = None) -> Any:
        """Run an operation, again after a NetworkError."""
        assert connect_ms is None or connect_ms < timeout_ms
        for attempt in range(ATTEMPTS):
            try:
                return self._run(operation(cast(Routes, _FarRoutes(self))))
            except NetworkError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _run(self, steps: Steps[Any]) -> Any:
        now = Now(self.ms, 0)
        try:
            step: Step = next(steps)
            while True:
                if isinstance(step, GetTime):
                    step = steps.send(now)
                elif isinstance(step, Await):
                    step = self._wait(steps, step.ticket)
                else:
                    asked = step.requests if isinstance(step, InvokeAll) else [cast(Invoke, step)]
                    answers = [self._answer(one) for one in asked]
                    self._end_round(len(asked))
                    if isinstance(step, InvokeAll):
                        step = steps.send(answers)
                    else:
                        (answer,) = answers
                        step = steps.throw(answer) if isinstance(answer, TandemError) else steps.send(answer)
        except StopIteration as over:
            return over.value

    def _wait(self, steps: Steps[Any], ticket: Ticket[Any]) -> Step:
        if not ticket.done:
            waiting, _FarRoutes.waiting = _FarRoutes.waiting, {}
            for one in waiting.items():
                self._settle(*one)
            self._end_round(len(waiting))
        return steps.throw(ticket.error) if ticket.error is not None else steps.send(ticket.result())

    def _end_round(self, count: int) -> None:
        self.rounds += 1
        self.most_at_once = max(self.most_at_once, count)
        self.on_round()

    # Answers.

    def _settle(self, topic: str, ticket: Ticket[TopicRoute]) -> None:
        self.requests[Code.GET_ROUTEINFO_BY_TOPIC] = self.requests.get(Code.GET_ROUTEINFO_BY_TOPIC, 0) + 1
        if not self.is_registered or topic not in self.listed:
            ticket.fail(NoRoute(f"no name server knows the topic {topic}"))
            return
        group, nums = BrokerGroup("C", "a", {0: MASTER}), self.queues[topic]
        ticket.settle(TopicRoute(topic, {"a": group}, (QueueData("a", nums, nums, 6),)))

    def _answer(self, asked: Invoke) -> Answer:
        command = asked.command
        code = Code(command.code)
        self.requests[code] = self.requests.get(code, 0) + 1
        if code is Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return _json({"topicList": sorted(self.listed) if self.is_registered else []})
        if code is Code.GET_BROKER_CLUSTER_INFO:
            group = {"cluster": "C", "brokerName": "a", "brokerAddrs": {"0": MASTER}}
            return _json({"brokerAddrTable": {"a": group} if self.is_registered else {}, "clusterAddrTable": {}})
        if code is Code.TANDEM_ROUTES_VERSION and self.is_ours:
            return Command(Answered.SUCCESS, fields={"version": str(self.version)})
        if code is Code.TANDEM_ROUTES_VERSION or (code is Code.TANDEM_QUEUE_BOUNDS and not self.is_ours):
            return Command(Answered.REQUEST_CODE_NOT_SUPPORTED)
        if not self.is_up:
            return NotConnected(f"{asked.address} is down")
        if code is Code.TANDEM_QUEUE_BOUNDS:
            return self._bounds(json.loads(command.body)["topics"])
        return self._answer_of_broker(code, command.fields)

    def _bounds(self, topics: list[str]) -> Command:
        some = topics[: self.topics_at_once]
        ends = [[self._count(topic, at) for at in range(self.queues[topic])] for topic in some]
        return _json({"starts": [[0] * len(of_topic) for of_topic in ends], "ends": ends})

    def _answer_of_broker(self, code: Code, fields: Mapping[str, str]) -> Answer:
        if code is Code.GET_BROKER_EPOCH_CACHE:
            return _json({"epochList": []})
        if code in (Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET):
            high = self._count(fields["topic"], int(fields["queueId"])) if code is Code.GET_MAX_OFFSET else 0
            return Command(Answered.SUCCESS, fields={"offset": str(high)})
        if code is Code.UPDATE_CONSUMER_OFFSET:
            return Command(Answered.SUCCESS)
        assert code is Code.PULL_MESSAGE, code
        topic, queue_id, at = fields["topic"], int(fields["queueId"]), int(fields["queueOffset"])
        if topic not in self.queues:
            return Command(Answered.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
        if queue_id >= self.queues[topic]:
            return Command(Answered.SYSTEM_ERROR, remark=f"queueId[{queue_id}] is illegal, topic:[{topic}] has fewer")
        count = self._count(topic, queue_id)
        if at >= count:
            return Command(Answered.PULL_OFFSET_MOVED, fields={"nextBeginOffset": str(count)})
        return Command(Answered.SUCCESS, body=_record(topic, queue_id, at, self.lives.get(topic, 0)))

    def _count(self, topic: str, queue_id: int) -> int:
        return self.counts.get((topic, queue_id), self.messages)


class _FarRoutes:
    """The parts of `Routes` that planners use."""

    waiting: dict[str, Ticket[TopicRoute]] = {}  # noqa: RUF012  # one cluster at a time

    def __init__(self, far: FarCluster) -> None:
        self._far = far
        _FarRoutes.waiting = {}

    def fetch(self, topic: str, _now: Now) -> Ticket[TopicRoute]:
        ticket: Ticket[TopicRoute] = Ticket()
        return self.waiting.setdefault(topic, ticket)

    def ask_name_server(self, make: Callable[[], Command]) -> Steps[Command]:
        answer: Command = yield Invoke(NAME_SERVER, make())
        return answer

    def read_addresses(self, _broker_name: str) -> list[str]:
        return [MASTER]


def _json(value: object) -> Command:
    return Command(Answered.SUCCESS, body=json.dumps(value).encode())


def _record(topic: str, queue_id: int, at: int, life: int) -> bytes:
    return encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        queue_offset=at,
        log_offset=life * 1_000_000 + at * 200,
        body=b"x",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=HOST_V4,
        store_ms=1 + life,
        store_host=HOST_V4,
        reconsume_times=0,
    )
