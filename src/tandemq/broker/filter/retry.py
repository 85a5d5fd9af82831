"""Filters of retry topics: each message by the expression that the group has for the topic the message came from.

Source: docs/reference/filters.md; RocketMQ ExpressionForRetryMessageFilter.
"""

from tandemq.broker.filter.consumer_filters import ConsumerFilters
from tandemq.broker.filter.expression import Properties
from tandemq.broker.state.subscriptions import Codes
from tandemq.model.java_hash import cached_java_hash
from tandemq.model.message import RETRY_TOPIC, TAGS


class RetryFilter:
    """What a pull of a group's retry topic selects. A message whose topic the group has no filter for matches."""

    __slots__ = ("_codes", "_filters", "_group")

    def __init__(self, filters: ConsumerFilters, group: str, codes: Codes) -> None:
        """Keep where the filters are.

        Args:
            filters: of all groups, as they are when a message is examined.
            group: that of the retry topic.
            codes: tags codes that the pull wants as well; None: all.
        """
        self._filters = filters
        self._group = group
        self._codes = codes

    @property
    def parts(self) -> int:
        """The largest number of constants and properties of an expression of the group."""
        return self._filters.parts_of(self._group)

    def matches(self, properties: Properties) -> bool:
        """Return whether a message matches."""
        if self._codes is not None:
            tags = properties.get(TAGS, "")
            if (cached_java_hash(tags) if tags else 0) not in self._codes:
                return False
        found = self._filters.find(properties.get(RETRY_TOPIC, ""), self._group)
        return found is None or found.compiled.matches(properties)
