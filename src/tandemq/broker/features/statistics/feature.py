"""Statistics and metrics as a feature."""

from tandemq.broker.features.statistics.consumer_metrics import ConsumerMetrics
from tandemq.broker.features.statistics.queue_info import QueueInfoProcessor
from tandemq.broker.features.statistics.request_metrics import RequestMetrics
from tandemq.broker.features.statistics.runtime_info import RuntimeInfoProcessor
from tandemq.broker.features.statistics.stats import Stats
from tandemq.broker.features.statistics.store_metrics import StoreMetrics
from tandemq.broker.features.statistics.topic_metrics import TopicMetrics
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the counters, and the requests and metrics that show them."""
    stats = Stats(kernel)
    return (
        stats,
        QueueInfoProcessor(kernel, stats),
        RuntimeInfoProcessor(kernel, stats),
        TopicMetrics(kernel, stats),
        ConsumerMetrics(kernel),
        StoreMetrics(kernel),
        RequestMetrics(kernel, stats),
    )
