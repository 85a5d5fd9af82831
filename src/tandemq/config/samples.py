"""Settings of brokers of demos and local clusters."""

from collections.abc import Mapping

ON_ANY_DISK: Mapping[str, int | float] = {
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 1.0,
    "diskSpaceWarningLevelRatio": 1.0,
}
"""Settings, by RocketMQ's keys, of a broker with a small store that must also work on a nearly full disk."""
