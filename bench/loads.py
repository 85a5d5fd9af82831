"""The load generator in a process of its own, so that its CPU time and garbage are not the measuring program's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

KINDS = {"latency": "bench.latency_load", "idle": "bench.idle_load"}
"""Modules of the kinds that `tandemq.load` does not have."""
_OPEN = "open"


class LoadFailed(Exception):
    """The generator could not put its load on the server; the text is its error."""


def run_load(kind: str, address: str, **options: str | float) -> dict[str, Any]:
    """Run a load to its end and return its result: the fields of tandemq.load.results.report, or of the kind's module.

    Raises:
        LoadFailed: the generator failed.
    """
    done = subprocess.run(_command(kind, address, options), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadFailed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return _result(done.stdout)


@contextlib.contextmanager
def idle_connections(address: str, connections: int, topic: str) -> Iterator[None]:
    """Hold that many connections open while the body runs.

    Raises:
        LoadFailed: they could not be opened.
    """
    with background_load("idle", address, connections=connections, topic=topic, seconds=3600):
        yield


@contextlib.contextmanager
def background_load(kind: str, address: str, **options: str | float) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run a load beside the body, from the moment at which its connections are open; the value waits for its result.

    Raises:
        LoadFailed: it did not begin, or failed.
    """
    command = _command(kind, address, options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:

        def result() -> dict[str, Any]:
            output, errors = process.communicate()
            if process.returncode != 0:
                raise LoadFailed(errors.strip().splitlines()[-1] if errors.strip() else f"exit {process.returncode}")
            return _result(output)

        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != _OPEN:
                result()
                raise LoadFailed(f"{kind} did not begin")
            yield result
        finally:
            process.kill()


def say_open() -> None:
    """Report to `background_load`, which started this process, that all connections are open."""
    sys.stdout.write(f"{_OPEN}\n")
    sys.stdout.flush()


def _command(kind: str, address: str, options: dict[str, str | int | float]) -> list[str]:
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    module = [KINDS[kind]] if kind in KINDS else ["tandemq.load", kind]
    return [sys.executable, "-m", *module, address, *flags]


def _result(output: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result
