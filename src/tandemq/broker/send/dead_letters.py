"""Warnings of messages that go to a dead letter topic: consumers have failed with them for good.

Each is a line in the log, of a group at most LINES_MAX within QUIET_MS; how many more there were is a line soon after
that time. Bounded: of more than GROUPS_MAX groups within that time the later ones are counted together.

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
"""Stands for the groups beyond GROUPS_MAX; no group has parentheses in its name."""


@dataclass(slots=True)
class _Counted:
    since_ms: int
    logged: int = 0
    left_out: int = 0


class DeadLetters:
    """What was logged of each group within QUIET_MS."""

    def __init__(self) -> None:
        """No dead letter yet."""
        self._groups: dict[str, _Counted] = {}

    def note(
        self, group: str, topic: str, properties: Mapping[str, str], reconsume_times: int, log_offset: int, now_ms: int
    ) -> None:
        """A message goes to a group's dead letters.

        Args:
            group: the consumer group.
            topic: that the message was in at first, as its properties say.
            properties: of the message.
            reconsume_times: how often consumers failed with it.
            log_offset: where it is stored now.
            now_ms: monotonic.
        """
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            group = OTHERS
        counted = self._groups.setdefault(group, _Counted(now_ms))
        if counted.logged >= LINES_MAX or group == OTHERS:
            counted.left_out += 1
            return
        counted.logged += 1
        named = topic if topic_name_error(topic) is None else f"{topic[:64]!r}"
        log.warning(
            "dead letter: group=%s topic=%s key=%.64r unique_key=%.64r reconsume_times=%d log_offset=%d",
            group,
            named,
            properties.get(KEYS, ""),
            properties.get("UNIQ_KEY", ""),
            reconsume_times,
            log_offset,
        )

    def report(self, now_ms: int) -> None:
        """Log how many were left out, of groups whose time is over."""
        for group, counted in list(self._groups.items()):
            if now_ms - counted.since_ms < QUIET_MS:
                continue
            del self._groups[group]
            if counted.left_out:
                log.warning(
                    "dead letters: group=%s %d more were not logged within %d s",
                    group,
                    counted.left_out,
                    (now_ms - counted.since_ms) // 1000,
                )
