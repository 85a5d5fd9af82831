"""Names of a cluster for the shell's completion: topics, consumer groups, broker groups, clusters, users.

Each key press asks at most one name server and one broker, for LIMIT_S together; without an answer nothing is
completed, and nothing is printed.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import click

from tandemq.cli.support.client_session import DEFAULT_NAME_SERVERS
from tandemq.cli.support.name_servers import registered_brokers
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.topic import is_system_group, own_topics

LIMIT_S = 1.0
SYSTEM_PREFIXES = ("%", "rmq_sys_", "RMQ_SYS_")
"""Names that begin so are completed once their first characters are typed."""
Completer = Callable[[click.Context, click.Parameter, str], list[str]]
_Names = Callable[[str], Iterable[str]]


def _completer(names: _Names) -> Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return _matching(_within_limit(context, names), incomplete)

    return complete


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    shown = (name for name in names if incomplete or not name.startswith(SYSTEM_PREFIXES))
    return sorted(name for name in shown if name.startswith(incomplete) and name.isprintable())


def _within_limit(context: click.Context, names: _Names) -> list[str]:
    """Return the names, none if the cluster does not answer in time."""
    found: list[str] = []

    def ask() -> None:
        # Whatever is wrong with the answer or the settings: the command itself reports it.
        with context.scope(cleanup=False), suppress(TandemError, OSError, ValueError, LookupError, TypeError):
            found.extend(names(context.params.get("name_servers") or DEFAULT_NAME_SERVERS))

    logging.disable()
    thread = threading.Thread(target=ask, name="completion", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return list(found)


def _topics(name_servers: str) -> Iterable[str]:
    table = registered_brokers(name_servers)
    own = own_topics(table, {str(data.get("cluster")) for data in table.values()})
    for address in name_servers.split(";"):
        with suppress(TandemError):
            names = _body(address.strip(), RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]
            return [name for name in names if name not in own]
    return []


def _groups(name_servers: str) -> Iterable[str]:
    """Return the groups of one master: they are created on all of them."""
    table = registered_brokers(name_servers)
    masters = [data["brokerAddrs"]["0"] for _, data in sorted(table.items()) if "0" in data["brokerAddrs"]]
    body = _body(masters[0], RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return [name for name in body["subscriptionGroupTable"] if not is_system_group(name)]


def _clusters(name_servers: str) -> Iterable[str]:
    return {str(data.get("cluster")) for data in registered_brokers(name_servers).values()}


def _body(address: str, code: RequestCode) -> Any:
    from tandemq.cli.support.members import ask_json  # noqa: PLC0415  # members has options that complete names

    return ask_json(address, code)


def _limited(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name behind `topic` or `group` in commands of quotas."""
    kinds: dict[Any, Completer] = {"topic": complete_topics, "group": complete_groups}
    complete = kinds.get(context.params.get("kind"))
    return [] if complete is None else complete(context, parameter, incomplete)


complete_topics = _completer(_topics)
complete_groups = _completer(_groups)
complete_brokers = _completer(registered_brokers)
complete_clusters = _completer(_clusters)
complete_limited = _limited
