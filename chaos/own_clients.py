"""TandemQ's clients under the faults of `chaos.kills`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

from chaos.kill_groups import Group
from chaos.other_clients import QUEUES, TOPIC
from chaos.pops import PopHistory, consume
from chaos.recorder import READER, Recorder, read_all
from tandemq import Producer
from tandemq.client.connection import try_request
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message

_PRODUCERS = ("a", "b")
_PACE_S, _FAILED_S, _OFFSETS_S, _COMMIT_S = 0.003, 0.05, 0.1, 1.0
_DRAIN_S, _QUIET_S = 60.0, 3.0
_WITHOUT_POPS = 2
"""Number of clients that read, at brokers that have no pops."""


class OwnClients:
    """Two producers, a reader that commits, and an observer of its committed offsets: TandemQ's clients."""

    def __init__(self, group: Group, recorder: Recorder) -> None:
        self._brokers = group
        self._recorder = recorder
        self._is_over, self._drained = threading.Event(), threading.Event()
        self._sent: set[str] = set()
        self._statuses: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        senders = [threading.Thread(target=self._produce, args=(name,)) for name in _PRODUCERS]
        others = [threading.Thread(target=self._read), threading.Thread(target=self._watch)]
        self._popped = PopHistory(elects=group.elects, recorder=recorder)
        if group.has_pops:
            others.append(threading.Thread(target=self._pop))
        self._senders, self._others = senders, others
        for thread in (*senders, *others):
            thread.start()

    def finish(self) -> None:
        """Stop sending, wait until the reader has everything that was acknowledged, or gets nothing more."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until and not self._is_drained():
            time.sleep(_QUIET_S / 10)
        self._drained.set()
        for thread in self._others:
            thread.join()

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON, named as those of `chaos.run`."""
        return {
            "statuses": dict(self._statuses),
            "acknowledged": self._statuses["SEND_OK"],
            "failed": sum(self._errors.values()),
            "errors": dict(self._errors),
            "pops": self._popped.report(),
        }

    def _is_drained(self) -> bool:
        has_pops = len(self._others) > _WITHOUT_POPS
        due = self._sent.union(tuple(self._popped.places.values()))
        return self._recorder.has_read(self._sent) and not (has_pops and self._popped.awaited(due))

    def _pop(self) -> None:
        consume(self._brokers.address, TOPIC, self._popped, self._drained)

    def _produce(self, name: str) -> None:
        asyncio.run(self._send(name))

    async def _send(self, name: str) -> None:
        async with Producer(self._brokers.address, group=f"killed-{name}", retries=0) as producer:
            number = 0
            while not self._is_over.is_set():
                number += 1
                body = f"{name}-{number}"
                self._recorder.sending(name, body, sends=1)
                try:
                    result = await producer.send(Message(TOPIC, body.encode(), tags=name, keys=[body]))
                except TandemError as error:
                    self._recorder.failed(body)
                    self._errors[f"{type(error).__name__}: {str(error)[:100]}"] += 1
                    await asyncio.sleep(_FAILED_S)
                    continue
                queue = self._recorder.queue(result.queue.queue_id)
                self._recorder.answered(body, result.status.name, queue, result.queue_offset)
                self._statuses[result.status.name] += 1
                if result.status.name == "SEND_OK":
                    self._sent.add(body)
                await asyncio.sleep(_PACE_S)

    def _read(self) -> None:
        read_all(self._brokers.address, TOPIC, self._recorder, self._drained, commit_s=_COMMIT_S)

    def _watch(self) -> None:
        while not self._drained.wait(_OFFSETS_S):
            if address := self._brokers.asked():
                self._ask(address)

    def _ask(self, address: str) -> None:
        for queue_id in range(QUEUES):
            fields = {"consumerGroup": READER, "topic": TOPIC, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
            op = self._recorder.asking_offset(READER, self._recorder.queue(queue_id))
            answer = try_request(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._recorder.offset(op, int(answer.fields["offset"]), "master")
