"""Replies as a feature."""

from tandemq.broker.features.replies.reply_message import ReplyMessageProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what passes replies on."""
    return (ReplyMessageProcessor(kernel),)
