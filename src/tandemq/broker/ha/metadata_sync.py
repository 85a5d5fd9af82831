"""A slave's copy of its master's metadata: topics, groups, consumer offsets, delay progress, counts of timed messages.

Each table is requested by itself; one that fails does not stop the others. In groups with a registry the master
publishes them instead (`roles.metadata_stream`).

Offsets are merged, because a consumer may have committed here while the master was down; the master gets them back
(`offsets_ahead`). Offsets of a topic are removed
once the master has neither the topic nor offsets of it. A master that lost its store, and so refuses our log, removes
no offset.
The counts of timed messages are for operators, and masters before 5.x have none. Java slaves also copy the master's
timer checkpoint, for the wheel that they build; a TandemQ slave that becomes master reads what waits from the log.

Source: docs/internals/ha.md, "configuration"; RocketMQ SlaveSynchronize; requirements M01-M05.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tandemq.boundary import Now
from tandemq.broker.connections.outbound import Peers
from tandemq.broker.ha.offsets_ahead import OffsetsAhead
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.kernel.progress_table import ProgressTable
from tandemq.broker.state.consumer_offsets import SEPARATOR, ConsumerOffsets, parse_offsets_body
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topics, parse_topics
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.storage.json_tables import DataVersion

log = logging.getLogger(__name__)
TIMEOUT_MS = 3_000
Taker = Callable[[str, bytes, Now], None]
"""Applies a table: the master's address, the body of its response."""


class LogCopy(Protocol):
    """The slave's copy of the log."""

    @property
    def is_accepted(self) -> bool:
        """Whether a TandemQ master has found that our log shares its history."""

    @property
    def is_copying(self) -> bool:
        """Whether our log is the beginning of the master's, as far as the protocol can tell."""


class MetadataSync:
    """Requests the master's tables and applies them."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delay: ProgressTable,
        take_timer_counts: Callable[[bytes, Now], None],
        peers: Peers,
        turn: CurrentTurn,
        log_copy: Callable[[], LogCopy | None],
        ahead: OffsetsAhead,
    ) -> None:
        """Take the collaborators.

        Args:
            take_timer_counts: takes the response to GET_TIMER_METRICS.
            log_copy: returns the copy of the master's log; None before it exists.
            ahead: hands the master what consumers committed here while it was down.
        """
        self._topic_table = topics
        self._group_table = groups
        self._offset_table = offsets
        self._delay = delay
        self._take_timer_counts = take_timer_counts
        self._peers = peers
        self._turn = turn
        self._log_copy = log_copy
        self._ahead = ahead
        self._takers: dict[Code, Taker] = {
            Code.GET_ALL_TOPIC_CONFIG: self._topics,
            Code.GET_ALL_CONSUMER_OFFSET: self._offsets,
            Code.GET_ALL_DELAY_OFFSET: self._delays,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._groups,
        }
        self._listed: tuple[str, frozenset[str]] = ("", frozenset())
        """The master that sent its topics since the last offsets, and their names."""
        self.synced_ms: dict[Code, int] = {}
        """When each table was last applied, calendar ms."""

    def is_complete(self) -> bool:
        """Whether every table was applied at least once."""
        return len(self.synced_ms) == len(self._takers)

    def sync(self, master: str, now: Now) -> None:
        """Request every table."""
        for code, take in self._takers.items():
            self._peers.call(
                master, Command(code), TIMEOUT_MS, self._on_answer(master, code, take), self._turn.out, now
            )
        command = Command(Code.GET_TIMER_METRICS)
        self._peers.call(master, command, TIMEOUT_MS, partial(self._on_timer_counts, master), self._turn.out, now)

    def _on_timer_counts(self, master: str, answer: Command | None, now: Now) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return  # 4.9 does not know the request
        try:
            self._take_timer_counts(answer.body, now)
        except (TandemError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("metadata: GET_TIMER_METRICS from master=%s is unusable: %s", master, brief(error, 1_000))

    def _on_answer(self, master: str, code: Code, take: Taker) -> Callable[[Command | None, Now], None]:
        def on_answer(answer: Command | None, now: Now) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                reason = "no answer" if answer is None else f"code {answer.code} {brief(answer.remark)}"
                log.warning("metadata: %s from master=%s failed: %s", code.name, master, reason)
                return
            try:
                take(master, answer.body, now)
            except (TandemError, AttributeError, TypeError, ValueError) as error:
                log.warning("metadata: %s from master=%s is unusable: %s", code.name, master, brief(error, 1_000))
                return
            self.synced_ms[code] = now.wall_ms

        return on_answer

    def _topics(self, master: str, body: bytes, _now: Now) -> None:
        raw = loads(body, is_trusted=True)
        version, configs = DataVersion.from_json(raw.get("dataVersion")), parse_topics(raw)
        self._listed = (master, frozenset(config.topic_name for config in configs))
        if version != self._topic_table.version:
            self._topic_table.replace(configs, version)
            log.info("metadata: took over %d topics", len(self._topic_table.table))
        self._topic_table.follow_mappings(raw)

    def _groups(self, _master: str, body: bytes, _now: Now) -> None:
        raw = loads(body, is_trusted=True)
        version = DataVersion.from_json(raw.get("dataVersion"))
        if version != self._group_table.version:
            self._group_table.replace(raw, version)

    def _offsets(self, master: str, body: bytes, now: Now) -> None:
        theirs = parse_offsets_body(body)
        if theirs.may_lack_commits:
            self._offset_table.keep_all()
        self._offset_table.copy_from_master(theirs.table, theirs.resets, theirs.version)
        self._forget_topics(master, theirs.table)
        self._offset_table.save()
        log_copy = self._log_copy()
        if log_copy is not None and log_copy.is_copying:  # before, an offset may be of messages that the master lost
            self._ahead.send(master, now)

    def _forget_topics(self, master: str, table: dict[str, dict[int, int]]) -> None:
        """Remove offsets of topics that the master has deleted: in neither its topics nor its offsets."""
        (asked, names), self._listed = self._listed, ("", frozenset())
        log_copy = self._log_copy()
        if log_copy is None or not log_copy.is_accepted or asked != master:
            return
        known = names | {key.rpartition(SEPARATOR)[0] for key in table}
        offsets = self._offset_table
        for topic in {key.rpartition(SEPARATOR)[0] for key in offsets.table} - known:
            offsets.remove_topic(topic)
            log.info("metadata: removed offsets of topic=%s, which the master has deleted", topic)

    def _delays(self, _master: str, body: bytes, _now: Now) -> None:
        self._delay.adopt_body(body)
        self._delay.save()
