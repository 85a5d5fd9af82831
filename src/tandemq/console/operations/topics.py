"""Topics: create, change, delete, send a message to one."""

import json

from tandemq.console.services import AlreadyExists, Console, NotFound
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import Actor
from tandemq.model.message import Message, SendResult
from tandemq.model.topic import topic_name_error

QUEUES_MAX = 1_024
PERMISSIONS = (2, 4, 6)
"""Write, read, both."""


async def create_topic(console: Console, by: Actor, topic: str, *, queues: int, perm: int, order: bool) -> None:
    """Create a topic on all masters.

    Raises:
        ConfigError: the name is invalid or taken.
        TandemError: a broker refuses, or does not answer.
    """
    if (fault := topic_name_error(topic)) is not None:
        raise ConfigError(fault)
    if await console.tables.topic(topic):
        raise AlreadyExists(f"topic {topic} exists already")
    await _store(console, by, "topic.create", topic, queues=queues, perm=perm, order=order)


async def change_topic(console: Console, by: Actor, topic: str, *, queues: int, perm: int, order: bool) -> None:
    """Change queues and permission of a topic on all masters.

    Raises:
        NotFound: there is no such topic.
        TandemError: a broker refuses, or does not answer.
    """
    if not await console.tables.topic(topic):
        raise NotFound("there is no such topic")
    await _store(console, by, "topic.change", topic, queues=queues, perm=perm, order=order)


async def _store(console: Console, by: Actor, action: str, topic: str, *, queues: int, perm: int, order: bool) -> None:
    before = {
        name: [config.write_queue_nums, config.perm] for name, config in (await console.tables.topic(topic)).items()
    }
    after = json.dumps({"queues": queues, "perm": perm, "order": order})
    async with console.audited(by, action, topic, before=json.dumps(before) if before else "", after=after):
        await console.admin.create_topic(topic, queues=queues, perm=perm, order=order)
    console.tables.forget()


async def delete_topic(console: Console, by: Actor, topic: str) -> None:
    """Delete a topic on all brokers. Raises TandemError if a broker refuses, or does not answer."""
    async with console.audited(by, "topic.delete", topic):
        await console.admin.delete_topic(topic)
    console.tables.forget()


async def send_message(console: Console, by: Actor, message: Message) -> SendResult:
    """Send a message. Raises TandemError if a broker refuses, or does not answer."""
    async with console.audited(by, "message.send", message.topic, after=f"{len(message.body)} bytes"):
        return await (await console.producer()).send(message)
