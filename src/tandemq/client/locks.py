"""Locks of orderly consumption: only who holds a queue's lock at its master may consume it.

A lock is renewed every `lock_renew_ms` and holds `lock_live_ms` after the last answer that granted it; the broker keeps
it longer (60 s), so that two members never believe to hold the same one. Only masters give locks: orderly consumption
stands still while a queue's master is gone.

Source: docs/requests.md, "orderly consumption"; RocketMQ RebalanceImpl.lockAll.
"""

from collections.abc import Iterable
from typing import Any

from tandemq.boundary import Now
from tandemq.client.kit import Kit
from tandemq.client.links import Answer
from tandemq.client.routes import MASTER_ID
from tandemq.client.settings import ConsumerOptions
from tandemq.client.steps import Steps, ask, json_object, tell_now
from tandemq.codec.fastjson import dumps
from tandemq.errors import NotConnected, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """A queue as JSON bodies write it."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_of(item: dict[str, Any]) -> MessageQueue:
    """A queue out of a JSON body."""
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"]))


class QueueLocks:
    """The locks one consumer holds."""

    def __init__(self, kit: Kit, options: ConsumerOptions) -> None:
        """None."""
        self._kit = kit
        self._options = options
        self._granted_ms: dict[MessageQueue, int] = {}

    def holds(self, queue: MessageQueue, now: Now) -> bool:
        """Whether a queue may be consumed now."""
        granted_ms = self._granted_ms.get(queue)
        return granted_ms is not None and now.mono_ms - granted_ms < self._options.lock_live_ms

    def expires_ms(self, queue: MessageQueue) -> int:
        """When a lock ends unless it is renewed."""
        return self._granted_ms.get(queue, 0) + self._options.lock_live_ms

    def acquire(self, queue: MessageQueue) -> Steps[bool]:
        """Ask for one lock; False: another member has it.

        Raises:
            NetworkError, RemoteError: the master does not say.
        """
        address = self._kit.routes.members(queue.broker_name).get(MASTER_ID)
        if address is None:
            raise NotConnected(f"no master of {queue.broker_name} is known")
        asked = yield from tell_now()
        asked_ms = asked.mono_ms
        answer = yield from ask(address, self._command(RequestCode.LOCK_BATCH_MQ, [queue]))
        return queue in self._take([queue], answer, asked_ms)

    def renew(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Renew locks; those that another member got are lost at once, the others when they expire."""
        for address, of_broker in self._by_master(queues).items():
            asked_ms = now.mono_ms
            self._kit.links.request(
                address, self._command(RequestCode.LOCK_BATCH_MQ, of_broker), now,
                lambda answer, _at, asked_ms=asked_ms, of_broker=of_broker:  # type: ignore[misc]
                    self._renewed(of_broker, answer, asked_ms),
            )  # fmt: skip

    def _renewed(self, queues: list[MessageQueue], answer: Answer, asked_ms: int) -> None:
        if not isinstance(answer, TandemError) and answer.code == ResponseCode.SUCCESS:
            self._take(queues, answer, asked_ms)

    def _take(self, queues: list[MessageQueue], answer: Command, asked_ms: int) -> set[MessageQueue]:
        granted = {queue_of(item) for item in json_object(answer).get("lockOKMQSet") or ()}
        for queue in queues:
            if queue in granted:
                self._granted_ms[queue] = asked_ms
            else:
                self._granted_ms.pop(queue, None)
        return granted

    def release(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Give locks back; nobody waits for an answer."""
        held = [queue for queue in queues if self._granted_ms.pop(queue, None) is not None]
        for address, of_broker in self._by_master(held).items():
            self._kit.links.tell(address, self._command(RequestCode.UNLOCK_BATCH_MQ, of_broker), now)

    def _by_master(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self._kit.routes.members(queue.broker_name).get(MASTER_ID)
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
