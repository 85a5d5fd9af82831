"""Which handler answers which request code: every module that answers requests brings its own table."""

from typing import TYPE_CHECKING

from tandemq.broker.failover import member_requests as membercalls
from tandemq.broker.failover import processor as groupcalls
from tandemq.broker.ha import digest as twins
from tandemq.broker.ha import metadata_tables as tables
from tandemq.broker.integrity import repair, scrubber
from tandemq.broker.processors import admin, connections
from tandemq.broker.processors import broker_to_client as relay
from tandemq.broker.processors import config as settings
from tandemq.broker.processors import consumer_manage as consume
from tandemq.broker.processors import query_message as query
from tandemq.broker.processors import queue_info as inspect
from tandemq.broker.processors import reset_offset as reset
from tandemq.broker.processors import runtime_info as runtime
from tandemq.broker.send import send_back as retry

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler


def install(broker: "Broker") -> "dict[int, Handler]":
    """All handlers of a broker; each is bound to it."""
    found: dict[int, Handler] = {}
    modules = (
        consume, retry, query, tables, admin, connections, inspect, relay, reset, runtime, settings, twins, groupcalls,
        repair, scrubber, membercalls,
    )  # fmt: skip
    for module in modules:
        for code, handler in module.handlers(broker).items():
            assert code not in found, f"two handlers for {code}"
            found[int(code)] = membercalls.guarded(broker, code, handler)
    return found
