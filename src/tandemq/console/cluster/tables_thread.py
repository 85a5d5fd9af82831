"""An administration client on an event loop in a thread of its own, for the tables of all topics and groups.

Decoding the progress of thousands of groups takes a second of CPU time; pages and streams must not wait for it.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.client.aio.admin import Admin
from tandemq.client.aio.loop_thread import LoopThread
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

    def close(self) -> None:
        """Close the client and end the thread."""
        self._thread.call(self._admin.close())
        self._thread.stop()
