"""Orders to a client in a process of its own, and its events: the side of drivers written in Python.

An order is a line `id verb key=value …` with percent-encoded values, an event is a line of JSON with the id of its
order. `id stop` stops an order. Drivers run in environments of their own, so this needs the standard library alone.
The other side: `tests.interop.driver.LineDriver`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

_out = threading.Lock()


class Order:
    """One order: its parameters and its end."""

    def __init__(self, line: str) -> None:
        self.id, self.verb, *words = line.rstrip("\n").split(" ")
        pairs = (word.partition("=") for word in words if word)
        self.values = {key: urllib.parse.unquote(value) for key, _, value in pairs}
        self.stopped = threading.Event()

    def text(self, key: str, missing: str = "") -> str:
        """Return a value as it was given."""
        return self.values.get(key, missing)

    def number(self, key: str, missing: int = 0) -> int:
        """Return a value as a number."""
        return int(self.values.get(key, missing))

    def emit(self, event: str, **values: object) -> None:
        """Print an event of this order."""
        line = json.dumps({"id": self.id, "event": event, "at_ms": int(time.time() * 1_000), **values})
        with _out:
            print(line, flush=True)


_Order = TypeVar("_Order", bound=Order)


def take_orders(parse: Callable[[str], _Order], run: Callable[[_Order], None]) -> None:
    """Carry out each order in a thread of its own, until standard input ends."""
    orders: dict[str, _Order] = {}
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order = parse(line)
        if order.verb == "stop":
            if order.id in orders:
                orders[order.id].stopped.set()
            continue
        orders[order.id] = order
        threading.Thread(target=run, args=(order,), daemon=True).start()
