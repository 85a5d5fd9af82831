"""The matrix of loads: what is sent and how, in which layout it is stored, and how it is read.

A cell of a load is named by its coordinates, for example `send/binary/varied/1024q/16x32` or `pull/1k/300t/4c`. Only
some of the product are measured without `--only`; any can be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from tandemq.load.wire.frames import RARE_TAG

FORMS = ("json", "v5", "binary", "v1", "delay", "timed", "batch", "tls", "transaction")
"""Requests: JSON as a 4.9 client and as a 5.x client writes it, binary headers, SEND_MESSAGE (10); JSON with a delay
level, with a time of delivery, batches, JSON over TLS; half messages, each with its commit."""
TLS = '{"verify": false}'
"""TLS of the generator: the brokers' certificates are their own."""
SQL = "KEYS IS NOT NULL AND customer <> 'c-0' AND TAGS IN ('returned-by-customer', 'audit')"
"""A filter over three properties that a tenth of the varied messages match."""
LENGTHS = {"varied": 0, "128": 128, "1k": 1 << 10, "64k": 64 << 10, "1m": 1 << 20}
"""Bodies; `varied` messages are as applications send them (`tandemq.load.wire.frames`)."""
LAYOUTS = {"4q": (1, 4), "1024q": (1, 1024), "300t": (300, 4)}
"""Topics, and queues of each."""
SHAPES = {"1x1": (1, 1), "64x1": (64, 1), "1x32": (1, 32), "16x32": (16, 32), "1000x1": (1000, 1), "4x8": (4, 8)}
"""Connections and requests in flight on each."""

LARGE = ("64k", "1m")
"""Lengths that are sent as JSON only, with and without TLS, with few requests in flight."""
_LARGE_SHAPES = ("1x1", "4x8")
_DELAY_LEVEL = 18  # Two hours: nothing becomes due during the run.
_DELAY_S = 7_200
_BATCH = 32
_Options = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class SendLoad:
    """Load of a cell that sends."""

    form: str
    lengths: str
    layout: str
    shape: str

    @property
    def name(self) -> str:
        """Return the coordinates as text."""
        return f"{self.form}/{self.lengths}/{self.layout}/{self.shape}"

    @property
    def title(self) -> str:
        """Return a description for people."""
        form = {"json": "", "tls": "TLS, ", "v5": "5.x form, ", "v1": "code 10, ", "batch": f"batch of {_BATCH}, "}
        form["transaction"] = "half message and commit, "
        return (
            f"{form.get(self.form, f'{self.form}, ')}{size_text(self.lengths)}{layout_text(self.layout)}, {self.shape}"
        )

    @property
    def options(self) -> _Options:
        """Return the options of the generator."""
        connections, window = SHAPES[self.shape]
        options: _Options = {**store_options(self.lengths, self.layout), "connections": connections, "window": window}
        if self.form == "delay":
            options["delay"] = _DELAY_LEVEL
        elif self.form == "timed":
            options["delay_s"] = _DELAY_S
        elif self.form == "batch":
            options["batch"] = _BATCH
        elif self.form == "tls":
            options["tls"] = TLS
        elif self.form == "transaction":
            options["half"] = 1
        else:
            options["form"] = self.form
        return options

    @property
    def open_requests(self) -> int:
        """Return the number of requests in flight."""
        connections, window = SHAPES[self.shape]
        return connections * window


@dataclass(frozen=True, slots=True)
class DeliverLoad:
    """Load of a cell that counts deliveries: messages that are due after seconds, as fast as the broker takes them."""

    form: str
    """"delay": of the first level; "timed"."""
    delay_s: int
    sends: SendLoad

    @property
    def topic(self) -> str:
        """Return the topic, which has nothing but what was delivered."""
        return f"bench-deliver-{self.form}"

    @property
    def options(self) -> _Options:
        """Return the options of the generator."""
        when: _Options = {"delay": 1} if self.form == "delay" else {"delay_s": self.delay_s}
        plain = {name: value for name, value in self.sends.options.items() if name != "form"}
        return plain | {"topic": self.topic} | when


@dataclass(frozen=True, slots=True)
class PullLoad:
    """Load of a cell that reads a store to its end, repeatedly."""

    lengths: str
    layout: str
    connections: int
    filter: str = ""
    """"tag": a tag of one in a hundred messages; "sql": an expression that one in ten matches; "": all."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the generator, less those of what was stored."""
        topics, queues = LAYOUTS[self.layout]
        found: dict[str, Any] = {"topic": topic(self.lengths, self.layout), "topics": topics, "queues": queues}
        found["connections"] = self.connections
        if self.filter:
            found["expression"] = RARE_TAG if self.filter == "tag" else SQL
        return found | ({"expression_type": "SQL92"} if self.filter == "sql" else {})


def store_options(lengths: str, layout: str) -> _Options:
    """Return the options of the generator that say what is stored where."""
    topics, queues = LAYOUTS[layout]
    options: _Options = {"topic": topic(lengths, layout), "topics": topics, "queues": queues}
    return options | ({"lengths": "varied"} if lengths == "varied" else {"body": LENGTHS[lengths]})


def topic(lengths: str, layout: str) -> str:
    """Return the topic, or what the names of several begin with."""
    return f"bench-{lengths}-{layout}"


def size_text(lengths: str) -> str:
    """Return the length of bodies for people."""
    return {"varied": "varied", "128": "128 B", "1k": "1 KiB", "64k": "64 KiB", "1m": "1 MiB"}[lengths]


def layout_text(layout: str) -> str:
    """Return the layout for people; nothing for the simple one."""
    return {"4q": "", "1024q": ", 1,024 queues", "300t": ", 300 topics"}[layout]


def _send_loads() -> dict[str, SendLoad]:
    found = {}
    for coordinates in product(FORMS, LENGTHS, LAYOUTS, SHAPES):
        load = SendLoad(*coordinates)
        if load.lengths in LARGE and (load.form not in ("json", "tls") or load.shape not in _LARGE_SHAPES):
            continue
        found[f"send/{load.name}"] = load
    return found


SENDS = _send_loads()
"""All loads that send to one asynchronous master, by the name of the cell."""
FLUSHES = {
    f"flush/{lengths}/{shape}": SendLoad("json", lengths, "4q", shape)
    for lengths in ("128", "varied")
    for shape in ("1x1", "64x1", "16x32")
}
"""Loads that send with synchronous flush."""
PAIRS = {name.replace("flush", "pair"): load for name, load in FLUSHES.items()}
"""Loads that send to a SYNC_MASTER with one slave."""
SEND_LOADS = SENDS | FLUSHES | PAIRS
PULL_LOADS = {
    **{
        f"pull/{lengths}/{layout}/{connections}c": PullLoad(lengths, layout, connections)
        for lengths, layout, connections in product(("1k", "varied", "64k", "1m"), LAYOUTS, (1, 4))
        if lengths not in LARGE or layout == "4q"
    },
    **{
        f"{name}/{layout}/{connections}c": PullLoad("varied", layout, connections, kind)
        for (name, kind), layout, connections in product((("filter", "tag"), ("sql", "sql")), LAYOUTS, (1, 4))
    },
}
DELIVERIES = {
    f"deliver/{form}/varied/4q/16x32": DeliverLoad(form, delay_s, SendLoad("json", "varied", "4q", "16x32"))
    for form, delay_s in (("delay", 1), ("timed", 2))
}
"""Deliveries that are counted while sends run: of the level of 1 s, and of timed messages 2 s later."""
