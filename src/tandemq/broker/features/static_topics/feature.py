"""Static topics as a feature."""

from tandemq.broker.features.static_topics.cleaning import StaticTopicCleaning
from tandemq.broker.features.static_topics.forwarding import Forwarding
from tandemq.broker.features.static_topics.processor import StaticTopics
from tandemq.broker.features.static_topics.update import StaticTopicProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the features that serve logical queues."""
    forwarding = Forwarding(kernel)
    cleaning = StaticTopicCleaning(kernel, forwarding)
    return StaticTopics(kernel, forwarding), StaticTopicProcessor(kernel, cleaning)
