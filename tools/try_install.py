"""Install TandemQ in a new virtual environment and use it: `python3 tools/try_install.py dist/*.whl --extra console`.

    wheel, sdist or clone ──► pip, a new environment for each ──► tandemq --version ──► tandemq up ──► send ──► receive
                                                                                        └► console, proxy, Spark

Run it with the Python to try; it needs its standard library and pip's index only. All happens in a temporary directory,
and the environment has no path to this repository. Exit status 1: an installation failed; what failed is printed.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

EXTRAS = ("console", "proxy", "spark")
"""The extras whose function is tried; others are only installed."""
INSTALL_S_MAX = 1_800
"""Spark is a source archive of 450 MB."""
READY_S_MAX = 240
COMMAND_S_MAX = 300
STOP_S_MAX = 60
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The preface of an HTTP/2 client: its magic bytes and empty settings."""
_PROXY = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
with socket.create_connection((host, int(port)), timeout=60) as link:
    link.sendall(bytes.fromhex(sys.argv[2]))
    head = link.recv(9, socket.MSG_WAITALL)
assert len(head) == 9 and head[3] == 4, head
"""
_SPARK = """
import sys
from tandemq.spark.runtime.session import open_session
session, _ = open_session(master="local[1]")
rows = session.read.format("rocketmq-log").load(sys.argv[1]).where("topic = 'Installed'").collect()
assert [bytes(row.body) for row in rows] == [b"42 paid"], rows
session.stop()
"""


class Failure(Exception):
    """What failed, for the user."""


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that lead Python to other packages, or choose the engine."""
    return {
        name: value
        for name, value in own.items()
        if not name.startswith(("PYTHON", "TANDEMQ_", "VIRTUAL_ENV", "SPARK_"))
    }


def run(*words: str | Path, cwd: Path, timeout_s: float = COMMAND_S_MAX) -> str:
    """Run a command and return its output. Raises Failure with what it printed if it fails or does not end."""
    line = " ".join(map(str, words[:6])) + (" …" if len(words) > 6 else "")
    try:
        done = subprocess.run(
            [*map(str, words)],
            cwd=cwd,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{line}\nnot finished after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise Failure(f"{line}\nexit status {done.returncode}\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def requirement(source: Path, extras: Sequence[str]) -> str:
    """Return what pip installs: the path of a wheel, an sdist or a clone, with extras."""
    return f"{source.resolve()}[{','.join(extras)}]" if extras else str(source.resolve())


def engine_of(version: str) -> str:
    """Return the engine that `tandemq --version` names. Raises Failure if the line is of another form."""
    words = version.split()
    if len(words) != 4 or words[0] != "tandemq" or words[3] != "engine":
        raise Failure(f"tandemq --version printed: {version.strip()}")
    return words[2]


@contextmanager
def cluster(tandemq: Path, home: Path, options: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run `tandemq up` on free ports; yields the addresses that it prints. It has to stop with exit status 0."""
    command = [
        str(tandemq),
        "up",
        "--port",
        "0",
        "--brokers",
        "1",
        "--slaves",
        "0",
        "--data",
        "data",
        "--json",
        *options,
    ]
    log = home / "up.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            command, cwd=home, env=environment(os.environ), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        alarm = signal.signal(signal.SIGALRM, lambda *_: process.kill())
        try:
            signal.alarm(READY_S_MAX)
            line = process.stdout.readline()
            signal.alarm(0)
            if not line:
                raise Failure(f"tandemq up did not become ready:\n{log.read_text(encoding='utf-8').strip()}")
            yield json.loads(line)
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S_MAX)
            if process.poll() != 0:
                raise Failure(f"tandemq up stopped with {process.poll()}:\n{log.read_text(encoding='utf-8').strip()}")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S_MAX)
            process.kill()


def use(binaries: Path, home: Path, extras: Sequence[str]) -> None:
    """Send and receive one message, and call what the extras add."""
    tandemq, python = binaries / "tandemq", binaries / "python"
    options = [f"--{name}" for name in ("console", "proxy") if name in extras]
    with cluster(tandemq, home, options) as addresses:
        names = str(addresses["nameServer"])
        run(tandemq, "topic", "create", "Installed", "--queues", "1", "-n", names, cwd=home)
        run(tandemq, "message", "send", "Installed", "42 paid", "--key", "42", "-n", names, cwd=home)
        command = ("message", "tail", "Installed", "--from", "earliest", "--count", "1", "--json")
        received = json.loads(run(tandemq, *command, "-n", names, cwd=home))
        if "42 paid" not in received.values():
            raise Failure(f"tandemq message tail printed {received}")
        if "console" in extras:
            with urllib.request.urlopen(
                addresses["console"]["link"], timeout=60
            ) as page:  # one of `tandemq up`, on loopback
                if b"TandemQ" not in page.read():
                    raise Failure(f"the console's page at {page.url} is not TandemQ's")
        if "proxy" in extras:
            run(python, "-I", "-c", _PROXY, addresses["proxy"]["address"], _PREFACE.hex(), cwd=home)
        store = home / addresses["brokers"][0]["store"]
    if "spark" in extras:
        run(python, "-I", "-c", _SPARK, store, cwd=home)


def try_one(source: Path, extras: Sequence[str], engine: str | None, directory: Path) -> str:
    """Install one file or clone and use it; returns what was proved. Raises Failure."""
    begun = time.monotonic()
    home = directory / "home"
    home.mkdir(parents=True)
    run(sys.executable, "-m", "venv", directory / "env", cwd=home)
    binaries = directory / "env" / "bin"
    pip = (binaries / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, requirement(source, extras), cwd=home, timeout_s=INSTALL_S_MAX)
    version = run(binaries / "tandemq", "--version", cwd=home)
    found = engine_of(version)
    if engine not in (None, found):
        raise Failure(f"the engine is {found}, not {engine}: {version.strip()}")
    installed_s = time.monotonic() - begun
    use(binaries, home, extras)
    return (
        f"{version.strip()}: installed in {installed_s:.0f} s, used in {time.monotonic() - begun - installed_s:.0f} s"
    )


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python3 tools/try_install.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("source", nargs="+", type=Path, help="wheel, sdist, or directory of a clone")
    parser.add_argument(
        "--extra",
        action="append",
        default=[],
        help=f"install with this extra too; tried: {', '.join(EXTRAS)}; repeatable",
    )
    parser.add_argument(
        "--engine", choices=("compiled", "python"), help="fail if the installed engine is the other one"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Try every source, each in an environment of its own; return 0 if all work, 2 if one does not exist."""
    options = options_of(words)
    for source in options.source:
        if not source.exists():
            print(f"try_install: {source} does not exist; `make release` builds wheels and the sdist", file=sys.stderr)
            return 2
    name = f"Python {platform.python_version()} on {platform.machine()}"
    failed = 0
    for source in options.source:
        directory = Path(tempfile.mkdtemp(prefix="tandemq-install-"))
        words_of_source = requirement(Path(source.name), options.extra).rpartition("/")[2]
        try:
            print(
                f"passed  {words_of_source}  {name}: {try_one(source, options.extra, options.engine, directory)}",
                flush=True,
            )
        except Failure as failure:
            failed += 1
            print(f"FAILED  {words_of_source}  {name}: {failure}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
