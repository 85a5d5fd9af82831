"""TandemQ: a message broker compatible with Apache RocketMQ; a slave's log is a byte-for-byte copy of its master's.

It uses Apache RocketMQ's wire and file formats. This package exports the public names of the client; everything else
is imported from its own package. The names are imported on first use, so that a broker process does not load the
client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin
    from tandemq.client.aio.deduplication import Deduplication, DuplicateStore, StoreFailure
    from tandemq.client.aio.pop_consumer import PopConsumer
    from tandemq.client.aio.producer import Producer
    from tandemq.client.aio.pull_consumer import PullConsumer
    from tandemq.client.aio.push_consumer import PushConsumer
    from tandemq.client.aio.redis_store import RedisStore
    from tandemq.client.aio.sqlite_store import SQLiteStore
    from tandemq.client.aio.stop_signals import stop_signals
    from tandemq.client.aio.transaction_producer import Transaction, TransactionProducer
    from tandemq.client.consumer.popped_message import PoppedMessage
    from tandemq.client.consumer.received_message import ReceivedMessage
    from tandemq.client.core.settings import ConsumeFrom, MessageModel
    from tandemq.config.tls import ClientTls, read_client_tls
    from tandemq.model.access import Credentials
    from tandemq.model.group import Sql
    from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus, StoredMessage
    from tandemq.model.replies import ReplyMessage, create_reply
    from tandemq.model.transactions import TransactionState

__version__ = "0.1.0"
__all__ = [
    "Admin",
    "ClientTls",
    "ConsumeFrom",
    "Credentials",
    "Deduplication",
    "DuplicateStore",
    "Message",
    "MessageModel",
    "MessageQueue",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RedisStore",
    "ReplyMessage",
    "SQLiteStore",
    "SendResult",
    "SendStatus",
    "Sql",
    "StoreFailure",
    "StoredMessage",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "create_reply",
    "read_client_tls",
    "stop_signals",
]
_MODULES = {
    "Admin": "tandemq.client.aio.admin",
    "ClientTls": "tandemq.config.tls",
    "ConsumeFrom": "tandemq.client.core.settings",
    "Credentials": "tandemq.model.access",
    "Deduplication": "tandemq.client.aio.deduplication",
    "DuplicateStore": "tandemq.client.aio.deduplication",
    "Message": "tandemq.model.message",
    "MessageModel": "tandemq.client.core.settings",
    "MessageQueue": "tandemq.model.message",
    "PopConsumer": "tandemq.client.aio.pop_consumer",
    "PoppedMessage": "tandemq.client.consumer.popped_message",
    "Producer": "tandemq.client.aio.producer",
    "PullConsumer": "tandemq.client.aio.pull_consumer",
    "PushConsumer": "tandemq.client.aio.push_consumer",
    "ReceivedMessage": "tandemq.client.consumer.received_message",
    "RedisStore": "tandemq.client.aio.redis_store",
    "ReplyMessage": "tandemq.model.replies",
    "SQLiteStore": "tandemq.client.aio.sqlite_store",
    "SendResult": "tandemq.model.message",
    "SendStatus": "tandemq.model.message",
    "Sql": "tandemq.model.group",
    "StoreFailure": "tandemq.client.aio.deduplication",
    "StoredMessage": "tandemq.model.message",
    "Transaction": "tandemq.client.aio.transaction_producer",
    "TransactionProducer": "tandemq.client.aio.transaction_producer",
    "TransactionState": "tandemq.model.transactions",
    "create_reply": "tandemq.model.replies",
    "read_client_tls": "tandemq.config.tls",
    "stop_signals": "tandemq.client.aio.stop_signals",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'tandemq' has no attribute {name!r}")
    return getattr(import_module(module), name)
