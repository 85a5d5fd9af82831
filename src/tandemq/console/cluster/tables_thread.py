"""An administration client on an event loop in a thread of its own, for the tables of all topics and groups.

Decoding the progress of thousands of groups takes a second of CPU time; pages and streams must not wait for it.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from tandemq.client.admin.cluster import ClusterInfo, QueueStats
from tandemq.client.admin.groups import ConsumeProgress
from tandemq.client.aio.admin import Admin
from tandemq.client.aio.loop_thread import LoopThread
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TopicConfig

TopicTable = Mapping[str, Mapping[str, TopicConfig]]
"""Configurations by topic, then by broker name."""
ProgressTable = Mapping[str, Mapping[MessageQueue, ConsumeProgress]]
"""Progress by group."""


class TableSource(Protocol):
    """Source of the tables: an `Admin`, or one in a thread."""

    async def topic_configs(self) -> TopicTable:
        """Return the configurations of all topics."""

    async def all_progress(self) -> ProgressTable:
        """Return the progress of all groups."""

    async def group_progress(self, group: str) -> Mapping[MessageQueue, ConsumeProgress]:
        """Return the progress of a group; {} if it has no offsets."""

    async def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the configurations of all groups."""

    async def cluster_info(self) -> ClusterInfo:
        """Return the registered brokers."""

    async def topic_stats(self, topic: str) -> Mapping[MessageQueue, QueueStats]:
        """Return the offsets of a topic's queues."""

    async def message_counts(self, topics: Mapping[str, Collection[str]]) -> Mapping[str, int]:
        """Return the number of stored messages of topics; names of brokers by topic."""


class TablesThread:
    """The client and its thread."""

    def __init__(self, admin: Admin) -> None:
        """Start the thread, and in it the client, which connects when it is asked."""
        self._admin = admin
        self._thread = LoopThread()
        self._thread.call(self._admin.start())

    async def topic_configs(self) -> TopicTable:
        """Return the configurations of all topics; see `Admin.topic_configs`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.topic_configs()))

    async def all_progress(self) -> ProgressTable:
        """Return the progress of all groups; see `Admin.all_progress`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.all_progress()))

    async def group_progress(self, group: str) -> Mapping[MessageQueue, ConsumeProgress]:
        """Return the progress of a group; see `Admin.group_progress`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.group_progress(group)))

    async def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the configurations of all groups; see `Admin.groups`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.groups()))

    async def cluster_info(self) -> ClusterInfo:
        """Return the registered brokers; see `Admin.cluster_info`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.cluster_info()))

    async def topic_stats(self, topic: str) -> Mapping[MessageQueue, QueueStats]:
        """Return the offsets of a topic's queues; see `Admin.topic_stats`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.topic_stats(topic)))

    async def message_counts(self, topics: Mapping[str, Collection[str]]) -> Mapping[str, int]:
        """Return the number of stored messages of topics; see `Admin.message_counts`."""
        return await asyncio.wrap_future(self._thread.begin(self._admin.message_counts(topics)))

    def close(self) -> None:
        """Close the client and end the thread."""
        self._thread.call(self._admin.close())
        self._thread.stop()
