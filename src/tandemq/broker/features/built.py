"""The features of a broker, each built from its kernel and what the features before it offer."""

from collections.abc import Callable, Sequence

from tandemq.broker.features.access import feature as access
from tandemq.broker.features.admin import feature as admin
from tandemq.broker.features.delay import feature as delay
from tandemq.broker.features.groups import feature as groups
from tandemq.broker.features.pop import feature as pop
from tandemq.broker.features.pulls import feature as pulls
from tandemq.broker.features.quotas import feature as quotas
from tandemq.broker.features.replies import feature as replies
from tandemq.broker.features.retries import feature as retries
from tandemq.broker.features.scrub import feature as scrub
from tandemq.broker.features.sends import feature as sends
from tandemq.broker.features.static_topics import feature as static_topics
from tandemq.broker.features.statistics import feature as statistics
from tandemq.broker.features.timers import feature as timers
from tandemq.broker.features.transactions import feature as transactions
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel

FEATURES: tuple[Callable[[Kernel], Sequence[Feature]], ...] = (
    quotas.build,
    sends.build,
    scrub.build,
    pulls.build,
    statistics.build,
    groups.build,
    retries.build,
    replies.build,
    delay.build,
    transactions.build,
    timers.build,
    pop.build,
    static_topics.build,
    admin.build,
    access.build,
)
"""In the order in which they see a turn; the last one sees requests first."""
