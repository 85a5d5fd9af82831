"""Tables of a whole cluster, with one request per broker whatever the number of topics, groups or queues.

Source: docs/reference/requests.md, "administration"; RocketMQ DefaultMQAdminExt.
"""

from collections.abc import Collection, Mapping
from typing import Any

from tandemq.client.admin.cluster import cluster_info, numbers, queue_table
from tandemq.client.admin.groups import ConsumeProgress
from tandemq.client.core.operations import Invoke, Steps, ask_all, checked, json_object, request
from tandemq.client.core.routes import Routes
from tandemq.codec.remoting.bodies import convert
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TopicConfig

TABLE_TIMEOUT_MS = 10_000
"""Timeout of requests with long responses."""


def ask_brokers(
    codes: Mapping[str, RequestCode], timeout_ms: int, **fields: str
) -> Steps[dict[str, dict[str, Any] | TandemError]]:
    """Send a request to each address at once.

    Returns:
        the JSON object in each response, or why there is none, by address.
    """
    questions = [Invoke(address, request(code, b"", **fields), timeout_ms) for address, code in codes.items()]
    answers = yield from ask_all(questions)
    return {address: _object(answer) for address, answer in zip(codes, answers, strict=True)}


def _object(answer: Command | TandemError) -> dict[str, Any] | TandemError:
    if isinstance(answer, TandemError):
        return answer
    try:
        return json_object(checked(answer))
    except TandemError as error:
        return error


def _ask_masters(routes: Routes, code: RequestCode, **fields: str) -> Steps[dict[str, dict[str, Any]]]:
    """Return the JSON object of each master, by broker name. Raises the first error."""
    info = yield from cluster_info(routes)
    masters = {name: group.members[min(group.members)] for name, group in info.brokers.items() if group.members}
    answers = yield from ask_brokers(dict.fromkeys(masters.values(), code), TABLE_TIMEOUT_MS, **fields)
    found: dict[str, dict[str, Any]] = {}
    for name, address in masters.items():
        answer = answers[address]
        if isinstance(answer, TandemError):
            raise answer
        found[name] = answer
    return found


def topic_configs(routes: Routes) -> Steps[dict[str, dict[str, TopicConfig]]]:
    """Return the configurations of all topics by topic, then by broker name; sorted by topic.

    Raises:
        NetworkError, RemoteError: a broker does not report them.
    """
    found: dict[str, dict[str, TopicConfig]] = {}
    for broker, table in (yield from _ask_masters(routes, RequestCode.GET_ALL_TOPIC_CONFIG)).items():
        for topic, item in (table.get("topicConfigTable") or {}).items():
            config = convert({**item, "topicName": topic}, TopicConfig, f"topic {topic}")
            found.setdefault(topic, {})[broker] = config
    return dict(sorted(found.items()))


def all_progress(routes: Routes) -> Steps[dict[str, dict[MessageQueue, ConsumeProgress]]]:
    """Return the progress of all groups of all brokers, by group; sorted by group.

    Raises:
        NetworkError, RemoteError: a broker does not report it.
    """
    found: dict[str, dict[MessageQueue, ConsumeProgress]] = {}
    for table in (yield from _ask_masters(routes, RequestCode.GET_BROKER_CONSUME_STATS)).values():
        for of_group in table.get("consumeStatsList") or ():
            for group, topics in of_group.items():
                queues = found.setdefault(group, {})
                for of_topic in topics:
                    queues |= _progress_in(of_topic)
    return dict(sorted(found.items()))


def group_progress(routes: Routes, group: str) -> Steps[dict[MessageQueue, ConsumeProgress]]:
    """Return the progress of a group at all brokers, as `all_progress` has it; {} if it has no offsets.

    Raises:
        NetworkError, RemoteError: a broker does not report it.
    """
    found: dict[MessageQueue, ConsumeProgress] = {}
    tables = yield from _ask_masters(routes, RequestCode.GET_CONSUME_STATS, consumerGroup=group)
    for table in tables.values():
        found |= _progress_in(table)
    return found


def _progress_in(table: dict[str, Any]) -> dict[MessageQueue, ConsumeProgress]:
    return {
        queue: ConsumeProgress(*numbers(item, "brokerOffset", "consumerOffset", "lastTimestamp"))
        for queue, item in queue_table(table, "offsetTable").items()
    }


def message_counts(routes: Routes, topics: Mapping[str, Collection[str]]) -> Steps[dict[str, int]]:
    """Return the number of stored messages of topics, all asked for at once.

    Args:
        topics: names of brokers by topic. A topic of which one does not report is left out.

    Raises:
        NetworkError: no name server responds.
    """
    info = yield from cluster_info(routes)
    masters = {name: group.members[min(group.members)] for name, group in info.brokers.items() if group.members}
    asked = [(topic, masters[name]) for topic, names in topics.items() for name in names if name in masters]
    answers = yield from ask_all(
        [
            Invoke(address, request(RequestCode.GET_TOPIC_STATS_INFO, topic=topic), TABLE_TIMEOUT_MS)
            for topic, address in asked
        ]
    )
    found: dict[str, int] = {}
    unknown: set[str] = set()
    for (topic, _), answer in zip(asked, map(_object, answers), strict=True):
        if isinstance(answer, TandemError):
            unknown.add(topic)
            continue
        bounds = [numbers(item, "minOffset", "maxOffset") for item in queue_table(answer, "offsetTable").values()]
        found[topic] = found.get(topic, 0) + sum(end - first for first, end in bounds)
    return {topic: count for topic, count in found.items() if topic not in unknown}


def order(address: str, code: RequestCode, fields: dict[str, str], timeout_ms: int) -> Steps[str]:
    """Send a command to a member of a group with a registry, and return the text of its result.

    Raises:
        NetworkError: the broker does not answer; unknown outcome.
        RemoteError: the command was refused or given up; the text says why.
    """
    (answer,) = yield from ask_all([Invoke(address, Command(code, fields=fields), timeout_ms)])
    if isinstance(answer, TandemError):
        raise answer
    return checked(answer).remark or ""
