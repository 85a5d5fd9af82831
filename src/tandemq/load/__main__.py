"""`python -m tandemq.load produce|consume|replicate`: one run in a process of its own.

The result is one line of JSON on standard output; `--progress` writes JSON lines to standard error during the run. Exit
code 1 and a line on standard error if the run failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from tandemq.load import (
    ConsumeOptions,
    OnProgress,
    ProduceOptions,
    ReplicateOptions,
    SendShape,
    consume,
    produce,
    replicate,
)
from tandemq.load.process import add_options, run_parsed
from tandemq.load.wire.frames import FORMS


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


def _replicate(args: argparse.Namespace, on_progress: OnProgress | None) -> Any:
    return replicate(ReplicateOptions(args.address, args.start, args.end, args.seconds), on_progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandemq.load", description=__doc__)
    parser.add_argument("--progress", action="store_true", help="JSON lines on standard error while it runs")
    kinds = parser.add_subparsers(dest="kind", required=True)

    def kind(name: str, run: Callable[..., Any], **defaults: Any) -> argparse.ArgumentParser:
        sub = kinds.add_parser(name)
        add_options(sub, **defaults)
        sub.set_defaults(run=run)
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
    for sub in (sends, pulls):
        sub.add_argument("--tls", default="", help="TLS on all connections: fields of ClientTls, as JSON")
    sends.add_argument("--lengths", choices=("one", "varied"), default="one", help="varied: --body does not matter")
    kind("replicate", _replicate, start=0, end=0, seconds=10.0)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one kind of load; return the exit code."""
    return run_parsed(_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
