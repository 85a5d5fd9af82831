"""`python -m tandemq.load produce|consume|latency|replicate|idle`: one run in a process of its own.

The result is one line of JSON on standard output; `--progress` writes JSON lines to standard error during the run. Exit
code 1 and a line on standard error if the run failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from tandemq.config.tls import ClientTls
from tandemq.errors import TandemError
from tandemq.load import (
    ConsumeOptions,
    IdleOptions,
    LatencyOptions,
    LoadProgress,
    OnProgress,
    ProduceOptions,
    ReplicateOptions,
    SendShape,
    consume,
    idle,
    measure_latency,
    produce,
    replicate,
)
from tandemq.load.results.report import to_json
from tandemq.load.wire.frames import FORMS
from tandemq.load.wire.sockets import use_tls


def _produce(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    shape = SendShape(
        args.topic,
        args.body,
        args.queues,
        args.batch,
        args.tag,
        args.group or "load_producer",
        args.broker_name,
        args.form,
        args.lengths == "varied",
        args.topics,
        args.delay,
        args.delay_s,
        bool(args.half),
    )
    return produce(
        ProduceOptions(
            args.address, shape, args.connections, args.window, args.seconds, args.count, args.warmup, args.rate
        ),
        on_progress,
    )


def _consume(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    options = ConsumeOptions(
        args.address,
        args.topic,
        args.queues,
        args.connections,
        args.max_messages,
        args.seconds,
        args.warmup,
        args.group or "load_consumer",
        args.topics,
        args.expression,
        args.window,
        args.expression_type,
    )
    return consume(options, on_progress)


def _latency(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    options = LatencyOptions(
        args.address,
        args.topic,
        args.rate,
        args.seconds,
        args.warmup,
        args.body,
        args.queues,
        args.group or "load_latency",
        args.groups,
        args.lengths == "varied",
        args.connections,
    )
    return measure_latency(options, on_progress, None if args.rate else _say_open)


def _replicate(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    return replicate(ReplicateOptions(args.address, args.start, args.end, args.seconds), on_progress)


def _idle(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    return idle(IdleOptions(args.address, args.connections, args.seconds, args.topic), on_progress, _say_open)


def _say_open() -> None:
    sys.stdout.write("open\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandemq.load", description=__doc__)
    parser.add_argument("--progress", action="store_true", help="JSON lines on standard error while it runs")
    kinds = parser.add_subparsers(dest="kind", required=True)

    def kind(name: str, run: Callable[..., Any], **defaults: Any) -> argparse.ArgumentParser:
        sub = kinds.add_parser(name)
        sub.add_argument("address", help="host:port")
        sub.set_defaults(run=run)
        for option, value in defaults.items():
            sub.add_argument(f"--{option.replace('_', '-')}", type=type(value), default=value)
        return sub

    sends = kind(
        "produce",
        _produce,
        topic="load",
        body=128,
        queues=8,
        batch=1,
        tag="",
        group="",
        broker_name="broker-a",
        connections=16,
        window=32,
        seconds=5.0,
        count=0,
        warmup=1.0,
        topics=1,
        delay=0,
        delay_s=0,
        half=0,
        rate=0.0,
    )
    sends.add_argument("--form", choices=FORMS, default="json", help="of the header and the request code")
    pulls = kind(
        "consume",
        _consume,
        topic="load",
        queues=8,
        connections=4,
        max_messages=32,
        seconds=5.0,
        warmup=1.0,
        group="",
        topics=1,
        expression="*",
        expression_type="TAG",
        window=32,
    )
    latency = kind(
        "latency",
        _latency,
        topic="latency",
        rate=1000.0,
        seconds=10.0,
        warmup=2.0,
        body=128,
        queues=4,
        group="",
        groups=1,
        connections=1,
    )
    for sub in (sends, pulls, latency):
        sub.add_argument("--tls", default="", help="TLS on all connections: fields of ClientTls, as JSON")
    for sub in (sends, latency):
        sub.add_argument("--lengths", choices=("one", "varied"), default="one", help="varied: --body does not matter")
    kind("replicate", _replicate, start=0, end=0, seconds=10.0)
    kind("idle", _idle, connections=10_000, seconds=5.0, topic="")
    return parser


def _print_progress(progress: LoadProgress) -> None:
    sys.stderr.write(to_json(progress) + "\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run one kind of load; return the exit code."""
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Nothing here is cyclic; a collection would only show up as latency.
    gc.disable()
    try:
        if getattr(args, "tls", ""):
            use_tls(ClientTls(**json.loads(args.tls)))
        sys.stdout.write(to_json(args.run(args, _print_progress if args.progress else None)) + "\n")
    except TandemError as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
