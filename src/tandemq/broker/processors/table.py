"""Which handler answers which request code: every processor brings its own table."""

from typing import TYPE_CHECKING

from tandemq.broker.context import Handler
from tandemq.broker.failover import member_requests, processor
from tandemq.broker.ha.digest import DigestProcessor
from tandemq.broker.ha.metadata_tables import MetadataTablesProcessor
from tandemq.broker.integrity import repair, scrubber
from tandemq.broker.processors.admin import AdminProcessor
from tandemq.broker.processors.broker_to_client import Broker2ClientProcessor
from tandemq.broker.processors.config import ConfigProcessor
from tandemq.broker.processors.connections import ConnectionsProcessor
from tandemq.broker.processors.consumer_manage import ConsumerManageProcessor
from tandemq.broker.processors.query_message import QueryMessageProcessor
from tandemq.broker.processors.queue_info import QueueInfoProcessor
from tandemq.broker.processors.reset_offset import ResetOffsetProcessor
from tandemq.broker.processors.runtime_info import RuntimeInfoProcessor
from tandemq.broker.send.send_back import SendBackProcessor

if TYPE_CHECKING:
    from tandemq.broker.node import Broker


def install(broker: "Broker") -> dict[int, Handler]:
    """Build the processors of a broker, and return their handlers by request code."""
    b, role, current, turn = broker, broker, broker.current, broker.current_turn
    processors = (
        ConsumerManageProcessor(
            b.store,
            b.topics,
            b.groups,
            b.offsets,
            b.clients,
            b.locks,
            b.pull,
            b.membership,
            b.machine.memory_bytes,
            role,
            current,
            turn,
        ),
        SendBackProcessor(b.store, b.topics, b.groups, b.send, b.stats, b.registration, b.random, role, current),
        QueryMessageProcessor(b.store, current),
        MetadataTablesProcessor(b.store, b.topics, b.groups, b.offsets, b.delay, role, current),
        AdminProcessor(b.store, b.topics, b.groups, b.offsets, b.pull, b.stats, b.upkeep, role, current, turn),
        ConnectionsProcessor(b.offsets, b.clients, b.registration),
        QueueInfoProcessor(b.store, b.topics, b.groups, b.offsets, b.clients, b.pull, b.stats, b.registration, current),
        Broker2ClientProcessor(b.store, b.topics, b.groups, b.clients, b.client_calls, b.links, current, turn),
        ResetOffsetProcessor(b.store, b.topics, b.groups, b.offsets, b.clients, b.pull, role, current, turn),
        RuntimeInfoProcessor(
            b.store,
            b.disk,
            b.send,
            b.delay,
            b.stats,
            b.schedule,
            b.scrubber,
            b.damages,
            b.replication,
            role,
            current,
            b.started_ms,
        ),
        ConfigProcessor(current, b.changes, b.reconfigure),
        DigestProcessor(b.store),
    )
    tables = [part.handlers() for part in processors]
    tables += [part.handlers(broker) for part in (processor, repair, scrubber, member_requests)]
    found: dict[int, Handler] = {}
    for table in tables:
        for code, handler in table.items():
            assert code not in found, f"two handlers for {code}"
            found[int(code)] = member_requests.guarded(broker, code, handler)
    return found
