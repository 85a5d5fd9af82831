"""Locks of orderly consumption: only who holds a queue's lock at its master may consume it.

A lock is renewed every `lock_renew_ms` and holds `lock_live_ms` after the last answer that granted it; the broker keeps
it longer (60 s), so that two members never believe to hold the same one. Only masters give locks: orderly consumption
stands still while a queue's master is gone. In a broker group that fails over it is who serves now; a lock counts for
the broker that gave it, and is taken again at the next one.

Source: docs/reference/requests.md, "orderly consumption"; RocketMQ RebalanceImpl.lockAll.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.store import offset_question
from tandemq.client.core.connections import Answer
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, ask_any_code, checked, current_time, json_object
from tandemq.client.core.settings import ConsumerOptions
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import NotConnected, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """A queue as JSON bodies write it."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_of(item: dict[str, Any]) -> MessageQueue:
    """A queue out of a JSON body."""
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), integer(item.get("queueId"), "queueId"))


class QueueLockClient:
    """The locks one consumer holds."""

    def __init__(self, kit: Kit, options: ConsumerOptions) -> None:
        """None."""
        self._kit = kit
        self._options = options
        self._granted: dict[MessageQueue, tuple[int, str]] = {}

    def holds(self, queue: MessageQueue, now: Now) -> bool:
        """Whether a queue may be consumed now."""
        return self._is_live(queue, now) and self._granted[queue][1] == self._kit.routes.leader(queue.broker_name)

    def is_moved(self, queue: MessageQueue, now: Now) -> bool:
        """Whether a lock is held that another broker than the one who serves now has given."""
        return self._is_live(queue, now) and not self.holds(queue, now)

    def _is_live(self, queue: MessageQueue, now: Now) -> bool:
        granted = self._granted.get(queue)
        return granted is not None and now.mono_ms - granted[0] < self._options.lock_live_ms

    def acquire(self, queue: MessageQueue) -> Steps[bool]:
        """Ask for one lock; False: another member has it.

        Raises:
            NetworkError, RemoteError: who gives it does not say.
        """
        address = self._kit.routes.leader(queue.broker_name)
        if address is None:
            raise NotConnected(f"no broker of {queue.broker_name} that gives locks is known")
        asked = yield from current_time()
        answer = yield from ask_any_code(address, self._command(RequestCode.LOCK_BATCH_MQ, [queue]))
        if answer.code == ResponseCode.NO_PERMISSION:
            check = partial(offset_question, self._options.group, queue)
            self._kit.standing.refused(address, check, (yield from current_time()))
        return queue in self._take([queue], checked(answer), asked.mono_ms, address)

    def renew(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Renew locks; those that another member got are lost at once, the others when they expire."""
        for address, of_broker in self._by_leader(queues).items():
            renewed = partial(self._renewed, of_broker, address, now.mono_ms)
            self._kit.links.request(address, self._command(RequestCode.LOCK_BATCH_MQ, of_broker), now, renewed)

    def _renewed(self, queues: list[MessageQueue], address: str, asked_ms: int, answer: Answer, _at: Now) -> None:
        if not isinstance(answer, TandemError) and answer.code == ResponseCode.SUCCESS:
            self._take(queues, answer, asked_ms, address)

    def _take(self, queues: list[MessageQueue], answer: Command, asked_ms: int, address: str) -> set[MessageQueue]:
        granted = {queue_of(item) for item in json_object(answer).get("lockOKMQSet") or ()}
        for queue in queues:
            if queue in granted:
                self._granted[queue] = (asked_ms, address)
            else:
                self._granted.pop(queue, None)
        return granted

    def release(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Give locks back; nobody waits for an answer."""
        held: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            granted = self._granted.pop(queue, None)
            if granted is not None:
                held.setdefault(granted[1], []).append(queue)
        for address, of_broker in held.items():
            self._kit.links.tell(address, self._command(RequestCode.UNLOCK_BATCH_MQ, of_broker), now)

    def _by_leader(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self._kit.routes.leader(queue.broker_name)
            if address is not None:
                found.setdefault(address, []).append(queue)
        return found

    def _command(self, code: RequestCode, queues: list[MessageQueue]) -> Command:
        body = {
            "clientId": self._kit.config.client_id,
            "consumerGroup": self._options.group,
            "mqSet": [queue_json(queue) for queue in queues],
            "onlyThisBroker": False,
        }
        return Command(code, body=dumps(body))
