"""One run in a process of its own: options from words, the result as a line of JSON, an error as exit code 1."""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
from typing import Any

from tandemq.config.tls import ClientTls
from tandemq.errors import TandemError
from tandemq.load.results.report import LoadProgress, to_json
from tandemq.load.wire.sockets import use_tls


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add the broker's address, and an option of the type of each default."""
    parser.add_argument("address", help="host:port")
    for option, value in defaults.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(value), default=value)


def run_parsed(args: argparse.Namespace) -> int:
    """Call `args.run` with the arguments and print its result; return the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Nothing here is cyclic; a collection would only show up as latency.
    gc.disable()
    try:
        if getattr(args, "tls", ""):
            use_tls(ClientTls(**json.loads(args.tls)))
        result = args.run(args, _print_progress if getattr(args, "progress", False) else None)
    except TandemError as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    sys.stdout.write(to_json(result) + "\n")
    return 0


def _print_progress(progress: LoadProgress) -> None:
    sys.stderr.write(to_json(progress) + "\n")
    sys.stderr.flush()
