"""What a producer of transactions sends to one broker, and what is found in its queues."""

from pathlib import Path
from typing import Any

from lab.sim.world.disk import SimDisk
from tandemq.codec.record.record import decode_messages
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.model.topic import HALF_TOPIC
from tests.unit.broker.harness import Harness, messages_in, send_fields

OK = ResponseCode.SUCCESS
COMMIT, ROLLBACK = 8, 12
GROUP = "tx"


def ready(path: Path | SimDisk, **changes: Any) -> Harness:
    """Return a broker that has read its open transactions, and a producer of the group."""
    broker = Harness(path, **changes)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(100)
    return broker


def half(broker: Harness, body: bytes = b"body", key: str = "K1", topic: str = "TopicA", **properties: str) -> Command:
    """Send a half message."""
    named = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key} | properties
    return broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 1, named), body)


def checking(path: Path, **changes: Any) -> Harness:
    """Return a broker that checks transactions older than 3 s, each 4 s."""
    return ready(path, transaction_check_interval_ms=4_000, transaction_timeout_ms=3_000, **changes)


def end(broker: Harness, at: int, outcome: int, *, key: str = "K1", **fields: Any) -> Command:
    """End the transaction whose half message has a queue offset."""
    stored = at_offset(broker, HALF_TOPIC, at)
    wanted = {
        "producerGroup": GROUP,
        "tranStateTableOffset": at,
        "commitLogOffset": stored.log_offset,
        "commitOrRollback": outcome,
        "msgId": key,
    }
    return broker.ask(RequestCode.END_TRANSACTION, wanted | fields)


def at_offset(broker: Harness, topic: str, at: int, queue_id: int = 0) -> StoredMessage:
    (message,) = decode_messages(record(broker, topic, at, queue_id))
    return message


def record(broker: Harness, topic: str, at: int, queue_id: int = 0) -> bytes:
    store = broker.node.store
    found = store.record_of(store.queues[topic, queue_id], at)
    assert found is not None
    return found[1]


def delivered(broker: Harness, topic: str = "TopicA", queue_id: int = 1) -> list[StoredMessage]:
    found = broker.pull(topic, queue_id=queue_id)
    return messages_in(found) if found is not None else []


def bodies(broker: Harness, topic: str, queue_id: int = 0) -> list[bytes]:
    queue = broker.node.store.queues.get((topic, queue_id))
    return [] if queue is None else [at_offset(broker, topic, at, queue_id).body for at in range(queue.max_offset)]
