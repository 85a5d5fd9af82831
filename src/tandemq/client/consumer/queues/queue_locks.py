"""Queue locks of an orderly consumer: only the member that holds the lock of a queue at its broker may consume it.

A lock is renewed every `lock_renew_ms` and is valid for `lock_live_ms` after the last request that was granted; the
broker keeps it longer (60 s), so that two members never hold the same lock. Only the master grants locks: an orderly
consumer stops while the master of a queue is gone. In a broker group that fails over the active member grants them; a
lock is valid at the broker that granted it, and is acquired again at the next active member.

Source: docs/reference/requests.md, "orderly consumption"; RocketMQ RebalanceImpl.lockAll.
"""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import Steps, ask_any_code, checked, current_time, json_object
from tandemq.client.core.requests import query_offset_request, queue_from_json, queue_to_json
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumerOptions
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import NotConnected, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue


class _Lock(NamedTuple):
    """A granted lock: when it was requested, milliseconds on the monotonic clock, and the broker that granted it."""

    requested_ms: int
    address: str


class QueueLockClient:
    """Locks that one consumer holds."""

    def __init__(
        self,
        client_id: str,
        options: ConsumerOptions,
        remoting: RemotingClient,
        routes: Routes,
        availability: BrokerAvailability,
    ) -> None:
        """No lock is held."""
        self._client_id = client_id
        self._options = options
        self._remoting = remoting
        self._routes = routes
        self._availability = availability
        self._locks: dict[MessageQueue, _Lock] = {}

    def holds(self, queue: MessageQueue, now: Now) -> bool:
        """Return whether a queue may be consumed now."""
        return self._is_live(queue, now) and self._locks[queue].address == self._routes.leader(queue.broker_name)

    def is_moved(self, queue: MessageQueue, now: Now) -> bool:
        """Return whether a valid lock was granted by a broker that is not the active member any more."""
        return self._is_live(queue, now) and not self.holds(queue, now)

    def _is_live(self, queue: MessageQueue, now: Now) -> bool:
        lock = self._locks.get(queue)
        return lock is not None and now.mono_ms - lock.requested_ms < self._options.lock_live_ms

    def acquire(self, queue: MessageQueue) -> Steps[bool]:
        """Request one lock; False: another member holds it.

        Raises:
            NetworkError, RemoteError: the broker does not respond, or refuses.
        """
        address = self._routes.leader(queue.broker_name)
        if address is None:
            raise NotConnected(f"no broker of {queue.broker_name} that grants locks is known")
        requested = yield from current_time()
        answer = yield from ask_any_code(address, self._command(RequestCode.LOCK_BATCH_MQ, [queue]))
        if answer.code == ResponseCode.NO_PERMISSION:
            check = partial(query_offset_request, self._options.group, queue)
            self._availability.suspect(address, check, (yield from current_time()))
        return queue in self._update([queue], checked(answer), _Lock(requested.mono_ms, address))

    def renew(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Renew locks; those that another member holds are lost at once, the others when they expire."""
        for address, of_broker in self._by_leader(queues).items():
            on_answer = partial(self._on_renewed, of_broker, _Lock(now.mono_ms, address))
            self._remoting.request(address, self._command(RequestCode.LOCK_BATCH_MQ, of_broker), now, on_answer)

    def _on_renewed(self, queues: list[MessageQueue], lock: _Lock, answer: Answer, _at: Now) -> None:
        if not isinstance(answer, TandemError) and answer.code == ResponseCode.SUCCESS:
            self._update(queues, answer, lock)

    def _update(self, queues: list[MessageQueue], answer: Command, lock: _Lock) -> set[MessageQueue]:
        granted = {queue_from_json(item) for item in json_object(answer).get("lockOKMQSet") or ()}
        for queue in queues:
            if queue in granted:
                self._locks[queue] = lock
            else:
                self._locks.pop(queue, None)
        return granted

    def release(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Release locks, without waiting for responses."""
        held: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            lock = self._locks.pop(queue, None)
            if lock is not None:
                held.setdefault(lock.address, []).append(queue)
        for address, of_broker in held.items():
            self._remoting.send_oneway(address, self._command(RequestCode.UNLOCK_BATCH_MQ, of_broker), now)

    def _by_leader(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self._routes.leader(queue.broker_name)
            if address is not None:
                found.setdefault(address, []).append(queue)
        return found

    def _command(self, code: RequestCode, queues: list[MessageQueue]) -> Command:
        body = {
            "clientId": self._client_id,
            "consumerGroup": self._options.group,
            "mqSet": [queue_to_json(queue) for queue in queues],
            "onlyThisBroker": False,
        }
        return Command(code, body=dumps(body))
