"""What the commands of `tandemq spark` share: a session, how far a job is, and errors of one line."""

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tandemq.errors import ConfigError, TandemError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandemq.spark.jobs.archive import Archive
    from tandemq.spark.jobs.collect import Collect

REPORT_EVERY_S = 0.5
LINE_EVERY_S = 10.0


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says where Spark runs."""
    command = click.option("--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting.")(command)
    return click.option(
        "--master", default="local[*]", show_default=True, help="Spark's master: local[N], or a cluster's address."
    )(command)


@contextmanager
def clear_errors(words: Mapping[str, str] | None = None) -> Iterator[None]:
    """What goes wrong within is said in one line.

    Args:
        words: how the command calls what an error's hint calls otherwise.
    Raises:
        ConfigError: the extra is not installed, or its PySpark is too old.
        TandemError: whatever it is, as one of our own errors.
    """
    try:
        from tandemq.spark.runtime.errors import translated  # noqa: PLC0415  # the other commands need no Spark
        from tandemq.spark.runtime.versions import check_version  # noqa: PLC0415

        check_version("tandemq spark")
        with translated():
            yield
    except ImportError as error:
        raise ConfigError(f"Spark is not installed: {error}", hint="pip install 'tandemq[spark]'") from error
    except TandemError as error:
        said = str(error)
        for word, ours in (words or {}).items():
            said = said.replace(word, ours)
        if said == str(error):
            raise
        raise type(error)(said, code=error.code) from error


@contextmanager
def spark_session(
    master: str, conf: tuple[str, ...], *, silent: bool, words: Mapping[str, str] | None = None
) -> "Iterator[tuple[SparkSession, str]]":
    """A session for one command, and the Java it runs on.

    Args:
        silent: the Java is not told on the terminal.
        words: see `clear_errors`.
    Raises:
        ConfigError: the extra is not installed, there is no Java, or a setting is malformed.
        TandemError: what the work within raises.
    """
    with clear_errors(words):
        from tandemq.spark.runtime.session import open_session  # noqa: PLC0415

        settings = dict(one.partition("=")[::2] for one in conf)
        if "" in settings or not all("=" in one for one in conf):
            raise ConfigError("--conf takes NAME=VALUE", hint="--conf spark.driver.memory=2g")
        session, java = open_session("tandemq spark", master=master, settings=settings)
        told = f"{java.version} from {java.origin}" if java is not None else "of a session that ran already"
        if not logging.getLogger().isEnabledFor(logging.DEBUG):
            _silence(session if java is not None else None)
        if not silent:
            click.echo(f"Java {told}", err=True)
        try:
            yield session, told
        finally:
            if java is not None:
                session.stop()


def _silence(session: "SparkSession | None") -> None:
    """What fails is raised too, and told once; `tandemq -v` shows all that Spark says of it."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if session is not None:
        session.sparkContext.setLogLevel("OFF")


def run_into_lake(job: "Archive | Collect", session: "SparkSession", *, follows: bool) -> dict[str, Any]:
    """What a job has written when it has ended or was interrupted: by SIGINT, and by SIGTERM if it follows."""
    if follows:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        job.run(session)
    except KeyboardInterrupt:
        pass
    facts = asdict(job.done) | {"seconds": round(time.monotonic() - began, 3)}
    del facts["trouble"]
    return facts


class ProgressLine:
    """One moving line on a terminal, a line now and then elsewhere, nothing with --json."""

    def __init__(self, what: str, *, silent: bool) -> None:
        """`what`: the word the lines begin with."""
        self._what = what
        self._silent = silent
        self._moves = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Tell that so many bytes are done."""
        now = time.monotonic()
        if self._silent or (now - self._last < (REPORT_EVERY_S if self._moves else LINE_EVERY_S) and done < total):
            return
        self._last = now
        speed = done / 1e6 / max(now - self._began, 1e-9)
        text = f"{self._what}: {100 * done // max(total, 1)} % of {total / 1e6:,.0f} MB, {speed:,.0f} MB/s"
        end = "\n" if done >= total or not self._moves else ""
        click.echo(f"\r{text}{end}" if self._moves else f"{text}{end}", nl=False, err=True)
