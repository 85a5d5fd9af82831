"""Offsets that consumers committed at a slave while its master was down, handed to the master when it is back.

    master down     consumer ── commit ──► slave
    master back     slave ── TANDEM_HAND_OFFSETS ──► master        higher offsets win, and those reset last
                    slave ── UPDATE_CONSUMER_OFFSET ──► Java master, queue by queue

Sent after each copy of the master's table, until the master has taken them. Without a registry only: other groups hand
offsets over with the permission to serve reads (`roles.offset_handover`).
Source: docs/internals/ha.md, "configuration"; requirement M09.
"""

import logging
from functools import partial
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.consumer_offsets import SEPARATOR
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief

log = logging.getLogger(__name__)
TIMEOUT_MS = 3_000
JAVA_COMMITS_MAX = 500
"""Maximum number of queues handed to a Java master at a time; the others follow with the next copy."""


class OffsetsAhead:
    """A slave's side."""

    def __init__(self, kernel: Kernel) -> None:
        """Send nothing yet."""
        self._offsets = kernel.offsets
        self._members = kernel.members
        self._peers = kernel.peers
        self._current = kernel.current
        self._turn = kernel.turn

    def send(self, master: str, now: Now) -> None:
        """Send the offsets that the master, "ip:port", lacks."""
        ahead = self._offsets.ahead()
        if ahead:
            command = Command(
                Code.TANDEM_HAND_OFFSETS,
                fields={"from": str(self._current.config.broker_id), "token": "0"},
                body=dumps_java({"offsets": ahead}),
            )
            on_answer = partial(self._answered, master, ahead)
            self._members.call(master, command, TIMEOUT_MS, on_answer, self._turn.out, now)

    def _answered(self, master: str, ahead: dict[str, Any], answer: Command | None, now: Now) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._accepted(master, ahead)
        elif answer is not None and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._commit_each(master, ahead, now)
        else:
            reason = "no answer" if answer is None else f"code {answer.code} {brief(answer.remark)}"
            log.warning("offsets: master=%s did not take those committed here: %s", master, reason)

    def _accepted(self, master: str, ahead: dict[str, Any]) -> None:
        self._offsets.accepted(ahead)
        self._offsets.save()
        count = sum(map(len, ahead["offsetTable"].values()))
        log.info("offsets: master=%s has taken %d that consumers committed here", master, count)

    def _commit_each(self, master: str, ahead: dict[str, Any], now: Now) -> None:
        table: dict[str, dict[int, int]] = ahead["offsetTable"]
        places = [(key, queue_id, offset) for key, queues in table.items() for queue_id, offset in queues.items()]
        for key, queue_id, offset in places[:JAVA_COMMITS_MAX]:
            topic, _, group = key.rpartition(SEPARATOR)
            fields = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(queue_id),
                "commitOffset": str(offset),
            }
            on_answer = partial(self._answered_commit, {"offsetTable": {key: {queue_id: offset}}})
            command = Command(Code.UPDATE_CONSUMER_OFFSET, fields=fields)
            self._peers.call(master, command, TIMEOUT_MS, on_answer, self._turn.out, now)

    def _answered_commit(self, ahead: dict[str, Any], answer: Command | None, _now: Now) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._offsets.accepted(ahead)
