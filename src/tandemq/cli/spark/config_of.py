"""`--config-of`: the configuration of a live broker, for a store made from an archived log, or to be kept beside it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.support.gathered import Command
from tandemq.cli.support.members import ask_json
from tandemq.cli.support.output import time_text
from tandemq.errors import ConfigError, NetworkError, RemoteError
from tandemq.model.codes import RequestCode

if TYPE_CHECKING:
    from tandemq.spark.jobs.restored_config import RestoredConfig
    from tandemq.spark.jobs.saved_config import SavedConfig

TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def config_of_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option."""
    return click.option("--config-of", metavar="HOST:PORT", help=help_text)


def read_config(address: str) -> "SavedConfig":
    """Request the tables of a broker, then the end of its log.

    Raises:
        NetworkError: it does not answer.
        RemoteError: it refuses, or answers otherwise.
        StoreDamaged: a table is malformed.
    """
    from tandemq.spark.jobs.saved_config import SavedConfig, checked, tables_of_responses  # noqa: PLC0415  # slow

    made_ms = int(time.time() * 1000)
    tables = checked(tables_of_responses(*(ask_json(address, code) for code in TABLES)), address)
    figures = ask_json(address, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    return SavedConfig(made_ms, address, int(figures["commitLogMaxOffset"]), tables)


def config_of_broker(address: str) -> "SavedConfig":
    """Return the configuration of the broker of `--config-of`.

    Raises:
        ConfigError: the broker does not answer, or refuses.
    """
    try:
        return read_config(address)
    except (NetworkError, RemoteError) as error:
        raise ConfigError(
            f"--config-of: {error}", hint="give the address of a broker that runs, or leave the option out"
        ) from error


def config_lines(done: "RestoredConfig | None", store: Path) -> Iterator[str]:
    """Yield lines about the configuration of a store."""
    if done is None:
        return
    if done.topics is not None:
        yield f"{len(done.topics)} topics in {store}/config/topics.json"
    if done.made_ms is None:
        yield "no configuration is kept: groups and offsets are those of a new broker"
        return
    yield (
        f"{done.groups} groups and {done.offsets} offsets, {done.clamped} of them reduced to the end of their queue, "
        f"of {done.origin} at {time_text(done.made_ms)}"
    )
    if not done.has_delays:
        yield "no progress of delayed messages that is as old as the log: delayed messages in it are delivered again"
