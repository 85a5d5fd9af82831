"""Common parts of the commands of `tandemq spark`: session, progress, errors of one line."""

import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.errors import ConfigError, TandemError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandemq.spark.jobs.archive import Archive
    from tandemq.spark.jobs.collect import Collect

NAME_CHARACTERS_MAX = 300


@contextmanager
def clear_errors(words: Mapping[str, str] | None = None) -> Iterator[None]:
    """Raise errors of Spark as one of `tandemq.errors`, which has one line.

    Args:
        words: replacements in error texts, from options of a source to options of the command.
    Raises:
        ConfigError: the extra is not installed, or its PySpark is too old.
        TandemError: any other error.
    """
    try:
        from tandemq.spark.runtime.errors import translate_errors  # noqa: PLC0415  # other commands need no Spark
        from tandemq.spark.runtime.versions import check_version  # noqa: PLC0415

        check_version("tandemq spark")
        with translate_errors():
            yield
    except ImportError as error:
        raise ConfigError(f"Spark is not installed: {error}", hint="pip install 'tandemq[spark]'") from error
    except TandemError as error:
        text = str(error)
        for word, replacement in (words or {}).items():
            text = text.replace(word, replacement)
        if text == str(error):
            raise
        raise type(error)(text, code=error.code) from error


@contextmanager
def spark_session(
    master: str | None, conf: tuple[str, ...], *, silent: bool, words: Mapping[str, str] | None = None
) -> "Iterator[tuple[SparkSession, str]]":
    """Open a session for one command; yields it and a description of its Java.

    Args:
        silent: do not print the Java on the terminal.
        words: see `clear_errors`.
    Raises:
        ConfigError: the extra is not installed, there is no Java, or a setting is malformed.
        TandemError: any error of the body.
    """
    with clear_errors(words):
        from tandemq.spark.runtime.session import open_session, stop_session  # noqa: PLC0415

        settings = dict(setting.partition("=")[::2] for setting in conf)
        if "" in settings or not all("=" in setting for setting in conf):
            raise ConfigError("--conf takes NAME=VALUE", hint="--conf spark.driver.memory=2g")
        name = _command_text()
        session, java = open_session(f"tandemq spark {name}", master=master, settings=settings)
        session.sparkContext.setJobDescription(name)
        origin = f"{java.version} from {java.origin}" if java is not None else "of a session that was already running"
        if not logging.getLogger().isEnabledFor(logging.DEBUG):
            _silence(session if java is not None else None)
        if java is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's sends a request to the JVM meanwhile
        if not silent:
            click.echo(f"Java {origin}", err=True)
        try:
            yield session, origin
        finally:
            if java is not None:
                stop_session(session)
            else:
                session.sparkContext.setJobDescription(None)  # type: ignore[arg-type]


def _command_text() -> str:
    """Return the command and its arguments, without options: the name of its jobs in Spark's UI."""
    context = click.get_current_context()
    given = [
        context.params[parameter.name]
        for parameter in context.command.params
        if isinstance(parameter, click.Argument) and parameter.name
    ]
    words = [str(word) for value in given for word in (value if isinstance(value, tuple) else [value])]
    return " ".join([context.info_name or "", *words])[:NAME_CHARACTERS_MAX]


def _silence(session: "SparkSession | None") -> None:
    """Silence Spark's logs, because errors are also raised; `tandemq -v` keeps the logs."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    if session is not None:
        session.sparkContext.setLogLevel("OFF")
        # A JVM that a signal has ended closes its connections, which this server would report with a stack trace.
        server = session.sparkContext._accumulatorServer  # noqa: SLF001
        server.handle_error = lambda *_: None  # type: ignore[method-assign]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record was logged by another library than py4j, which logs failed calls to the root logger."""
    return "py4j" not in Path(record.pathname).parts


def run_into_lake(job: "Archive | Collect", session: "SparkSession") -> dict[str, Any]:
    """Run a job until it ends, or SIGINT or SIGTERM stops it between two commits; returns its result."""
    from tandemq.spark.runtime.stopping import stop_signals  # noqa: PLC0415  # --help needs no Spark

    began = time.monotonic()
    with stop_signals() as stop:
        job.run(session, stop)
    facts = asdict(job.done) | {"seconds": round(time.monotonic() - began, 3)}
    del facts["commit_error"]
    return facts
