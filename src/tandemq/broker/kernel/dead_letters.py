"""Log lines for messages stored in a dead letter topic, after the last failed attempt of a consumer.

At most LINES_MAX lines per group within QUIET_MS; the number of further messages is logged after that time. Of more
than GROUPS_MAX groups within that time, the later ones are counted together.

Source: docs/guides/operations.md, "Dead letters".
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tandemq.model.message import KEYS
from tandemq.model.topic import topic_name_error

log = logging.getLogger(__name__)
QUIET_MS = 60_000
LINES_MAX = 10
GROUPS_MAX = 100
OTHERS = "(others)"
"""Name under which groups beyond GROUPS_MAX are counted; group names contain no parentheses."""


@dataclass(slots=True)
class _Counted:
    since_ms: int
    logged: int = 0
    unlogged: int = 0


class DeadLetters:
    """Dead letters of each group within QUIET_MS."""

    def __init__(self) -> None:
        """Begin without dead letters."""
        self._groups: dict[str, _Counted] = {}

    def note(
        self, group: str, topic: str, properties: Mapping[str, str], reconsume_times: int, log_offset: int, now_ms: int
    ) -> None:
        """Log a message that is stored in a dead letter topic.

        Args:
            group: consumer group.
            topic: original topic of the message, by its properties.
            properties: properties of the message.
            reconsume_times: number of failed attempts.
            log_offset: log offset at which it is stored now.
            now_ms: monotonic time.
        """
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            group = OTHERS
        counted = self._groups.setdefault(group, _Counted(now_ms))
        if counted.logged >= LINES_MAX or group == OTHERS:
            counted.unlogged += 1
            return
        counted.logged += 1
        shown_topic = topic if topic_name_error(topic) is None else f"{topic[:64]!r}"
        log.warning(
            "dead letter: group=%s topic=%s key=%.64r unique_key=%.64r reconsume_times=%d log_offset=%d",
            group,
            shown_topic,
            properties.get(KEYS, ""),
            properties.get("UNIQ_KEY", ""),
            reconsume_times,
            log_offset,
        )

    def report(self, now_ms: int) -> None:
        """Log the number of messages without a line, of groups whose time is over."""
        for group, counted in list(self._groups.items()):
            if now_ms - counted.since_ms < QUIET_MS:
                continue
            del self._groups[group]
            if counted.unlogged:
                log.warning(
                    "dead letters: group=%s %d more were not logged within %d s",
                    group,
                    counted.unlogged,
                    (now_ms - counted.since_ms) // 1000,
                )
