"""Load on a broker, made cheaply enough not to be the thing measured.

Each kind of run is one function from options to a result, both plain values:

    produce    SEND_MESSAGE_V2 or batches: connections × window          produce.py
    consume    pull everything there is, several connections             consume.py
    latency    producer at a fixed rate, long-poll pulls, end to end     latency.py
    replicate  a classic slave that drains the commit log and reports    replicate.py
    idle       many connections that do nothing                          idle.py
    probe      single questions: first acknowledgement, runtime info     probe.py

    options ─► frames (requests from prepared pieces) ─► wire (sockets, epoll) ─► broker
    result  ◄─ report ◄─ histogram ◄─ responses (lengths and codes only) ◄────────────┘

What makes it cheap: frames are joined from constant pieces, several per send call; answers are counted by their
lengths and one search per read, never decoded; records are walked by their size fields. Every result states the share
of one core the generator used, because a figure measured by a busy generator is a figure of the generator.

`python -m tandemq.load` runs each kind as a process of its own and prints the result as JSON; that is how `make bench`
uses it, for every broker alike.

An end of the house: sockets and clocks; knows `errors` and nothing else of it.
"""

from tandemq.load.consume import ConsumeOptions, consume
from tandemq.load.idle import IdleOptions, idle
from tandemq.load.latency import LatencyOptions, measure_latency
from tandemq.load.produce import ProduceOptions, produce
from tandemq.load.replicate import ReplicateOptions, replicate
from tandemq.load.results.report import (
    ConsumeResult,
    IdleResult,
    LatencyResult,
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
    "IdleOptions",
    "IdleResult",
    "LatencyOptions",
    "LatencyResult",
    "LoadError",
    "LoadProgress",
    "OnProgress",
    "ProduceOptions",
    "ProduceResult",
    "ReplicateOptions",
    "ReplicateResult",
    "SendShape",
    "consume",
    "idle",
    "measure_latency",
    "produce",
    "replicate",
]
