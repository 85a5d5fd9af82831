"""Time spans of a lake: messages by the time at which a broker stored them.

Source: docs/guides/dataset.md, "Replay a time span".
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from tandemq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Times `[start_ms, end_ms)`, milliseconds since 1970; None: no bound.

    Raises:
        ConfigError: the end is not after the start.
    """

    start_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        """Check the order."""
        if self.start_ms is not None and self.end_ms is not None and self.end_ms <= self.start_ms:
            raise ConfigError(
                f"the time span ends at {moment_text(self.end_ms)}, not after its start {moment_text(self.start_ms)}",
                hint="the end is exclusive, and must be later than the start",
            )

    def condition(self) -> Column:
        """Return the condition for rows of messages that were stored within the span. Rows without a time (damage) are
        within a span without bounds only."""
        stored = F.col("storeTimestamp")
        found = F.expr("true")
        if self.start_ms is not None:
            found = found & (stored >= F.timestamp_millis(F.lit(self.start_ms)))
        if self.end_ms is not None:
            found = found & (stored < F.timestamp_millis(F.lit(self.end_ms)))
        return found


ALWAYS = TimeSpan()


def moment_text(wall_ms: int) -> str:
    """Format a time in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
