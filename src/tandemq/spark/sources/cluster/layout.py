"""Queues that a query selects, and queues that it has read and that are missing now.

    options ─► routes of the topics ─► QueueLayout
    queues read so far, not in the layout ─► asked of their brokers ─► gone (loss), or away (may come back)

Routes are fetched many at a time, and a broker that restarts is in some of them only: routes alone never prove that a
queue is gone. Its brokers do, which answer that they do not have it.

All functions are client operations. Source: docs/guides/pipeline.md, "Offsets".
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.admin.cluster import cluster_info, topic_names, topic_routes
from tandemq.client.core.operations import Invoke, Steps, ask_all, current_time, refusal, request, run_together
from tandemq.client.core.requests import pull_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.errors import ConfigError, NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import SYSTEM_TOPICS
from tandemq.spark.sources.cluster.absence import agreed_absence, check_registered, unknown_topic
from tandemq.spark.sources.cluster.members import BEYOND, Members, QueueLayout
from tandemq.spark.sources.cluster.options import SourceOptions

GO_ON = "failOnDataLoss=false goes on without it"
KEPT_MS, KEPT_QUEUES_MIN = 10_000, 1_000
"""How long a layout is kept, and from how many queues on without a version of the routes."""


@dataclass(frozen=True, slots=True)
class MissingQueues:
    """Queues that a stream has read and that are not in its layout, with the reason."""

    gone: Mapping[MessageQueue, str] = field(default_factory=dict)
    """Their brokers do not have them any more, or the options do not select them."""
    away: Mapping[MessageQueue, str] = field(default_factory=dict)
    """They may come back."""


def find_layout(routes: Routes, options: SourceOptions, *, has_begun: bool = False) -> Steps[QueueLayout]:
    """Return the queues that the options select.

    Args:
        has_begun: for a stream that has begun: topics, brokers and queues that the options name and that do not exist
            are left out. They are read when they appear; whether they existed before is not known here.
    Raises:
        ConfigError: a topic, broker or queue does not exist; names the existing ones.
        NoRoute: none of the brokers that have a topic, or may have it, is registered.
        NetworkError: no name server answers.
    """
    topics: Sequence[str] = options.topics or tuple(options.assigned)
    if options.pattern is not None:
        topics = [name for name in (yield from topic_names(routes)) if _matches(options.pattern, name)]
    found = yield from topic_routes(routes, topics)
    unknown = tuple(topic for topic in topics if topic not in found)
    if unknown and options.pattern is None and not has_begun:
        raise (yield from unknown_topic(routes, unknown[0], options))
    queues: list[MessageQueue] = []
    members: dict[str, Members] = {}
    clusters: dict[str, str] = {}
    for topic, route in found.items():
        of_topic = route.subscribe_queues()
        if options.assigned:
            wanted = options.assigned[topic]
            if not has_begun:
                yield from check_registered(routes, topic, set(wanted) - set(route.brokers), options)
                _check_assigned(topic, of_topic, wanted)
            of_topic = [queue for queue in of_topic if queue.queue_id in wanted.get(queue.broker_name, ())]
        queues += of_topic
        members |= {name: group.members for name, group in route.brokers.items()}
        clusters |= {name: group.cluster for name, group in route.brokers.items() if group.cluster}
    return QueueLayout(tuple(sorted(queues)), members, clusters, unknown)


def _matches(pattern: str, topic: str) -> bool:
    return topic not in SYSTEM_TOPICS and re.fullmatch(pattern, topic) is not None


def _check_assigned(topic: str, found: Sequence[MessageQueue], wanted: Mapping[str, Collection[int]]) -> None:
    there: dict[str, list[int]] = {}
    for queue in found:
        there.setdefault(queue.broker_name, []).append(queue.queue_id)
    for broker_name, numbers in wanted.items():
        if broker_name not in there:
            raise ConfigError(f"assign: {topic!r} is not on {broker_name!r}", hint=f"it is on {', '.join(there)}")
        for number in numbers:
            if number not in there[broker_name]:
                raise ConfigError(
                    f"assign: {topic!r} has no queue {number} on {broker_name!r}",
                    hint=f"it has 0 to {max(there[broker_name])}",
                )


class KeptLayout(NamedTuple):
    """A layout of an earlier poll: when it was found, and by which version of the routes; "": none is known."""

    layout: QueueLayout
    version: str
    since_ms: int

    def is_current(self, version: str, now: Now, *, has_others: bool) -> bool:
        """Return whether it need not be found again. `has_others`: there are several name servers, and another one may
        have answered with older routes."""
        is_recent = now.mono_ms - self.since_ms < KEPT_MS
        if not version:
            return is_recent and len(self.layout.queues) >= KEPT_QUEUES_MIN
        return version == self.version and (is_recent or not has_others)


def poll_layout(
    routes: Routes, options: SourceOptions, known: Collection[MessageQueue], kept: KeptLayout | None
) -> Steps[tuple[KeptLayout, MissingQueues]]:
    """Return the queues of a stream that has begun, and those of `known` that are missing.

    Routes are asked for again if they have changed. Name servers of RocketMQ do not tell that: routes of many queues
    are then kept for a while.

    Raises:
        NetworkError: no name server answers, or loss is not accepted and a missing queue may come back.
    """
    now = yield from current_time()
    version = yield from _routes_version(routes)
    has_others = ";" in options.name_servers.strip("; ")
    if kept is None or not kept.is_current(version, now, has_others=has_others):
        kept = KeptLayout((yield from find_layout(routes, options, has_begun=True)), version, now.mono_ms)
    missing = yield from _find_missing(routes, options, kept.layout, known)
    if missing.away and options.fail_on_data_loss:
        raise NetworkError(next(iter(missing.away.values())), hint=f"is it down? {GO_ON}")
    return kept, missing


def _routes_version(routes: Routes) -> Steps[str]:
    answer = yield from routes.ask_name_server(lambda: request(RequestCode.TANDEM_ROUTES_VERSION))
    return answer.fields.get("version", "") if answer.code == ResponseCode.SUCCESS else ""


def _find_missing(
    routes: Routes, options: SourceOptions, layout: QueueLayout, known: Collection[MessageQueue]
) -> Steps[MissingQueues]:
    there = set(layout.queues)
    absent = [queue for queue in known if queue not in there]
    if not absent:
        return MissingQueues()
    gone = {queue: "is not selected by the options any more" for queue in absent if not _is_selected(options, queue)}
    groups = (yield from cluster_info(routes)).brokers
    names = sorted({queue.broker_name for queue in absent if queue not in gone} - set(groups))
    nobody = f"no member of {', '.join(names)} is registered at the name servers"
    away = {queue: nobody for queue in absent if queue not in gone and queue.broker_name in names}
    asked = [queue for queue in absent if queue not in gone and queue not in away]
    answers = yield from run_together([_why_gone(queue, groups[queue.broker_name].members) for queue in asked])
    for queue, why in zip(asked, answers, strict=True):
        if why is not None:
            gone[queue] = f"is gone: its {why}"
        else:
            away[queue] = (
                f"the name servers do not list {queue.topic} {queue.broker_name} queue {queue.queue_id}, and no broker "
                "answered that it is gone"
            )
    return MissingQueues(gone, away)


def _is_selected(options: SourceOptions, queue: MessageQueue) -> bool:
    if options.pattern is not None:
        return _matches(options.pattern, queue.topic)
    if options.assigned:
        return queue.queue_id in options.assigned.get(queue.topic, {}).get(queue.broker_name, ())
    return queue.topic in options.topics


def _why_gone(queue: MessageQueue, members: Members) -> Steps[str | None]:
    """Return why a queue is gone, by the answer of its master, or of all slaves if there is no master; None if it may
    exist."""
    addresses = [members[MASTER_ID]] if MASTER_ID in members else list(members.values())
    answers = yield from ask_all([Invoke(address, pull_request(queue, BEYOND, 1)) for address in addresses])
    return agreed_absence([refusal(answer) if isinstance(answer, Command) else answer for answer in answers])
