"""Queues of the members of a consumer group, for clients that ask their broker for them instead of computing them.

Source: docs/reference/pop.md; RocketMQ QueryAssignmentProcessor.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.pop.request_modes import RequestMode, RequestModes
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.serving import Right
from tandemq.broker.kernel.topic_routes import TopicRoutes
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.allocation import allocate_averagely, allocate_by_circle, allocate_shared
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.pop import ANY_QUEUE
from tandemq.model.topic import RETRY_PREFIX, Permission

ROUTE_MS = 30_000
"""How long the queues of a topic in all brokers are kept."""
ROUTES_MAX = 2_000
"""Maximum number of topics whose queues are kept."""
QUEUES_MAX = 65_536
STRATEGIES = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


class AssignmentBody(msgspec.Struct, rename="camel"):
    """Body of QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class _KnownQueues(NamedTuple):
    queues: Sequence[MessageQueue]
    until_ms: int


class Assignment(Feature):
    """Assign queues to members."""

    def __init__(self, kernel: Kernel, modes: RequestModes) -> None:
        """Begin without routes."""
        self._modes = modes
        self._routes = TopicRoutes(kernel)
        self._topics = kernel.topics
        self._clients = kernel.clients
        self._current = kernel.current
        self._links = kernel.links
        self._turn = kernel.turn
        self._known: dict[str, _KnownQueues] = {}
        """Queues by topic, the oldest first."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.QUERY_ASSIGNMENT: Request(self._on_query, Right.READ)}

    def _on_query(self, link: Link, command: Command, now: Now) -> Command | None:
        asked, command = decode_body(command.body, AssignmentBody, "assignment"), command.head()
        known = self._known.get(asked.topic)
        if known is not None and now.mono_ms < known.until_ms:
            return self._answer(command, asked, known.queues)

        def on_route(route: dict[str, Any] | None, now: Now) -> None:
            queues = _queues_in(asked.topic, route) or self._own_queues(asked.topic)
            self._keep(asked.topic, queues, now)
            if self._links.get(link.number) is link:
                answer = self._answer(command, asked, queues)
                self._turn.out.send(link.number, encode_command(answer))

        self._routes.route(asked.topic, on_route, now)
        return None

    def _keep(self, topic: str, queues: Sequence[MessageQueue], now: Now) -> None:
        self._known.pop(topic, None)
        if queues:
            self._known[topic] = _KnownQueues(queues, now.mono_ms + ROUTE_MS)
        while len(self._known) > ROUTES_MAX:
            del self._known[next(iter(self._known))]

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic in this broker, which may be its only one."""
        found = self._topics.get(topic)
        number = found.config.read_queue_nums if found is not None and found.config.perm & Permission.READ else 0
        return [MessageQueue(topic, self._current.config.broker_name, queue_id) for queue_id in range(number)]

    def _answer(self, command: Command, asked: AssignmentBody, queues: Sequence[MessageQueue]) -> Command:
        mode = self._modes.mode_of(asked.topic, asked.consumer_group)
        assigned = self._assigned(asked, mode, queues)
        if assigned is None:
            return command.answer(ResponseCode.SUCCESS, body=b"{}")
        found = [
            {
                "attachments": None,
                "messageQueue": {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic},
                "mode": mode.mode,
            }
            for queue in assigned
        ]
        return command.answer(ResponseCode.SUCCESS, body=dumps({"messageQueueAssignments": found}))

    def _assigned(
        self, asked: AssignmentBody, mode: RequestMode, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue] | None:
        """Return the queues of a member; None if the group has no members, or the strategy is not known."""
        if not queues:
            return None
        config = self._current.config
        if asked.message_model == "BROADCASTING" or not config.assigns_queues:
            return list(queues)
        group = self._clients.consumers.get(asked.consumer_group)
        strategy = STRATEGIES.get(asked.strategy_name)
        if group is None or strategy is None:
            return None
        members = group.client_ids()
        if mode.mode == "PULL" or asked.topic.startswith(RETRY_PREFIX):
            return strategy(asked.client_id, members, queues)
        shared = mode.pop_share_queue_num
        if shared <= 0 or shared >= len(members) - 1:
            brokers = dict.fromkeys([queue.broker_name for queue in queues])
            return [MessageQueue(asked.topic, broker, ANY_QUEUE) for broker in brokers]
        return allocate_shared(asked.client_id, members, queues, shared)


def _queues_in(topic: str, route: dict[str, Any] | None) -> list[MessageQueue]:
    """Return the readable queues in a name server's route."""
    listed = (route or {}).get("queueDatas")
    found: list[MessageQueue] = []
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, dict):
            continue
        name, number, perm = item.get("brokerName"), item.get("readQueueNums"), item.get("perm")
        if isinstance(name, str) and isinstance(number, int) and isinstance(perm, int) and perm & Permission.READ:
            found += [MessageQueue(topic, name, queue_id) for queue_id in range(min(number, QUEUES_MAX - len(found)))]
    return found
