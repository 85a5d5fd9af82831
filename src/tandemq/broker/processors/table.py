"""Which handler answers which request code: every module that answers requests brings its own table."""

from typing import TYPE_CHECKING

from tandemq.broker.failover import member_requests, processor
from tandemq.broker.ha import digest, metadata_tables
from tandemq.broker.integrity import repair, scrubber
from tandemq.broker.processors import (
    admin,
    broker_to_client,
    connections,
    consumer_manage,
    query_message,
    queue_info,
    reset_offset,
    runtime_info,
)
from tandemq.broker.processors import config as settings
from tandemq.broker.send import send_back

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler


def install(broker: "Broker") -> "dict[int, Handler]":
    """All handlers of a broker; each is bound to it."""
    found: dict[int, Handler] = {}
    modules = (
        consumer_manage,
        send_back,
        query_message,
        metadata_tables,
        admin,
        connections,
        queue_info,
        broker_to_client,
        reset_offset,
        runtime_info,
        settings,
        digest,
        processor,
        repair,
        scrubber,
        member_requests,
    )
    for module in modules:
        for code, handler in module.handlers(broker).items():
            assert code not in found, f"two handlers for {code}"
            found[int(code)] = member_requests.guarded(broker, code, handler)
    return found
