"""Errors of topics that name servers do not return, with the reason that their other answers show.

A name server forgets the topics of a broker group together with its last member. That a topic existed is known only if

    it has an order configuration         name servers keep these on disk, with names of brokers
    the query itself names its brokers    in `assign`, or in starting or ending offsets

Otherwise "never existed" and "all of its brokers are down" look the same, and the error names both.

Source: docs/guides/pipeline.md, "The cluster as a source"; RocketMQ RouteInfoManager.
"""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from tandemq.client.admin.cluster import cluster_info, order_brokers, topic_names
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.errors import ConfigError, NoRoute, RemoteError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, own_topics
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import Bound, SourceOptions, StoreTimes

NAMES_SHOWN = 10
ILLEGAL_QUEUE = re.compile(r"queueId\[\d+\] is illegal")
"""Remark of brokers about a queue that a topic does not have; its code depends on their version."""


def agreed_absence(answers: Sequence[TandemError | None]) -> str | None:
    """Return why a queue does not exist, without an article, if all members asked refuse a pull for that reason; None
    if it may exist, or nobody was asked."""
    found = [_absence(answer) for answer in answers]
    return found[0] if found and None not in found else None


def _absence(answer: TandemError | None) -> str | None:
    if not isinstance(answer, RemoteError):
        return None
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return "topic was deleted"
    return "topic has fewer queues" if ILLEGAL_QUEUE.search(str(answer)) else None


def unknown_topic(routes: Routes, topic: str, options: SourceOptions) -> Steps[TandemError]:
    """Return the error of a topic without a route.

    NoRoute: no broker is registered. ConfigError: brokers are, and none of them has it.

    Raises:
        NoRoute: as `check_registered`, for brokers that the query or the order configuration of the topic names.
        NetworkError: no name server answers.
    """
    yield from check_registered(routes, topic, _named(topic, options), options)
    ordered = yield from order_brokers(routes, topic)
    yield from check_registered(routes, topic, ordered, options, origin="its order configuration")
    cluster = yield from cluster_info(routes)
    brokers = list(cluster.brokers)
    if not brokers:
        return NoRoute(
            f"no broker is registered at the name server {options.name_servers}, so it knows no queue of {topic!r}",
            hint="start the brokers of the topic, or check that their namesrvAddr is this name server",
        )
    own = own_topics(brokers, cluster.clusters)
    names = [name for name in (yield from topic_names(routes)) if name not in own]
    return ConfigError(f"no name server knows the topic {topic!r}", hint=_existing(topic, names, brokers))


def check_registered(
    routes: Routes, topic: str, expected: Collection[str], options: SourceOptions, *, origin: str = "the query"
) -> Steps[None]:
    """Check that brokers which have a topic are registered. `origin`: source of the brokers' names.

    Raises:
        NoRoute: one of them has no registered member.
        NetworkError: no name server answers.
    """
    if not expected:
        return
    brokers = (yield from cluster_info(routes)).brokers
    away = sorted(name for name in expected if name not in brokers)
    if away:
        raise NoRoute(
            f"{origin} names {_shown(away)} for the topic {topic!r}, and no member of {away[0]} is registered at the "
            f"name server {options.name_servers}",
            hint=f"start it, or check its name and its namesrvAddr; registered: {_shown(list(brokers))}",
        )


def _named(topic: str, options: SourceOptions) -> set[str]:
    """Return the broker groups that the query names for a topic."""
    return {
        *options.assigned.get(topic, ()),
        *_brokers_of(topic, options.starting),
        *_brokers_of(topic, options.ending),
    }


def _brokers_of(topic: str, bound: Bound) -> set[str]:
    named = bound.offsets if isinstance(bound, Position) else bound.wall_ms if isinstance(bound, StoreTimes) else {}
    return {queue.broker_name for queue in named if queue.topic == topic}


def _existing(topic: str, names: Sequence[str], brokers: Sequence[str]) -> str:
    others = [name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    near = get_close_matches(topic, others, n=NAMES_SHOWN) or others[:NAMES_SHOWN]
    more = f" and {len(others) - len(near)} more" if len(others) > len(near) else ""
    there = f"there are {', '.join(near)}{more}" if near else "there are no topics"
    return f"{there} on {_shown(brokers)}; if a broker that is down has it, start that one"


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "no broker") + more
