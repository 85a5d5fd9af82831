"""A slave's copy of its master's tables: topics, groups, consumer offsets, delay progress.

Each table is asked for by itself; one that fails does not stop the others.
Source: docs/ha.md, "metadata"; RocketMQ SlaveSynchronize; requirements M01-M05.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.broker.groups import parse_groups
from tandemq.broker.offsets import parse_offsets_body
from tandemq.broker.topics import parse_topics
from tandemq.codec.fastjson import loads
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.tables import DataVersion

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
TIMEOUT_MS = 3_000


class MetadataSync:
    """Asks the master for its tables and takes them over."""

    def __init__(self, broker: "Broker") -> None:
        """Nothing was asked yet."""
        self._broker = broker
        self._takers: dict[Code, Callable[[bytes, Now], None]] = {
            Code.GET_ALL_TOPIC_CONFIG: self._topics,
            Code.GET_ALL_CONSUMER_OFFSET: self._offsets,
            Code.GET_ALL_DELAY_OFFSET: self._delays,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
        }
        if broker.failover is not None:  # these follow the log (`tablestream`)
            del self._takers[Code.GET_ALL_CONSUMER_OFFSET], self._takers[Code.GET_ALL_DELAY_OFFSET]
        self.synced_ms: dict[Code, int] = {}
        """When each table was last taken, calendar ms."""

    def is_complete(self) -> bool:
        """Whether every table was taken at least once."""
        return len(self.synced_ms) == len(self._takers)

    def sync(self, master: str, now: Now) -> None:
        """Ask for every table."""
        for code, take in self._takers.items():
            self._broker.peers.call(
                master, Command(code), TIMEOUT_MS, self._on_answer(master, code, take), self._broker.turn_out, now
            )

    def _on_answer(
        self, master: str, code: Code, take: Callable[[bytes, Now], None]
    ) -> Callable[[Command | None, Now], None]:
        def on_answer(answer: Command | None, now: Now) -> None:
            if self._broker.failover is not None and self._broker.failover.is_holder:
                return  # our own tables are the ones that count now
            if answer is None or answer.code != ResponseCode.SUCCESS:
                reason = "no answer" if answer is None else f"code {answer.code} {answer.remark}"
                log.warning("metadata: %s from master=%s failed: %s", code.name, master, reason)
                return
            try:
                take(answer.body, now)
            except (TandemError, AttributeError, TypeError, ValueError) as error:
                log.warning("metadata: %s from master=%s is unusable: %s", code.name, master, error)
                return
            self.synced_ms[code] = now.wall_ms

        return on_answer

    def _topics(self, body: bytes, _now: Now) -> None:
        raw = loads(body)
        version = DataVersion.from_json(raw.get("dataVersion"))
        if version != self._broker.topics.version:
            self._broker.topics.replace(parse_topics(raw), version)
            log.info("metadata: took over %d topics", len(self._broker.topics.table))

    def _groups(self, body: bytes, _now: Now) -> None:
        raw = loads(body)
        version = DataVersion.from_json(raw.get("dataVersion"))
        if version != self._broker.groups.version:
            self._broker.groups.replace(parse_groups(raw), version)

    def _offsets(self, body: bytes, _now: Now) -> None:
        self._broker.offsets.merge(*parse_offsets_body(body))
        self._broker.offsets.save()

    def _delays(self, body: bytes, _now: Now) -> None:
        self._broker.delay.adopt_body(body)
        self._broker.delay.save()
