"""Which handler answers which request code: every module that answers requests brings its own table."""

from typing import TYPE_CHECKING

from tandemq.broker import (
    admin,
    connections,
    consume,
    groupcalls,
    inspect,
    membercalls,
    query,
    relay,
    repair,
    reset,
    retry,
    runtime,
    scrubber,
    settings,
    tables,
    twins,
)

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
