"""Load generator, cheap enough not to limit what it measures.

Each kind of run is one function from options to a result, both plain values:

    produce    sends of each form, batches, or transactions              produce.py
    consume    pull everything there is, several connections             consume.py
    replicate  a classic slave that drains the commit log and reports    replicate.py
    probe      single requests: topics, the end of a queue               wire/probe.py

    options ─► frames (thousands of prepared requests) ─► wire (sockets, epoll) ─► broker
    result  ◄─ report ◄─ histogram ◄─ responses (lengths and codes only) ◄────────────┘

Frames are rendered before the run, thousands of different ones; during it the keys of some hundred at a time are
rewritten in place, and a send call gets a view of several. Responses are counted by their lengths and one search per
read, never decoded; records are walked by their size fields. Every result has the generator's share of one core,
because a saturated generator measures itself.

`python -m tandemq.load` runs each kind in a process of its own and prints the result as JSON; `make bench` uses it for
every broker in the same way, and has kinds of its own beside it.

Its hot loops use sockets and clocks directly, and make their frames themselves; single requests are those of
`tandemq.client.connection`.
"""

from tandemq.load.consume import ConsumeOptions, consume
from tandemq.load.produce import ProduceOptions, produce
from tandemq.load.replicate import ReplicateOptions, replicate
from tandemq.load.results.report import (
    ConsumeResult,
    LoadProgress,
    OnProgress,
    ProduceResult,
    ReplicateResult,
)
from tandemq.load.wire.frames import SendShape
from tandemq.load.wire.responses import LoadError

__all__ = [
    "ConsumeOptions",
    "ConsumeResult",
    "LoadError",
    "LoadProgress",
    "OnProgress",
    "ProduceOptions",
    "ProduceResult",
    "ReplicateOptions",
    "ReplicateResult",
    "SendShape",
    "consume",
    "produce",
    "replicate",
]
