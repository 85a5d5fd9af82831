"""Requests of operators about queues and the progress of groups in them.

Source: docs/reference/requests.md, "administration"; RocketMQ AdminBrokerProcessor.
"""

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.statistics.stats import Stats
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.sliced_responses import Slices
from tandemq.broker.state.consumer_offsets import SEPARATOR
from tandemq.codec.record.entries import is_hole
from tandemq.codec.remoting.admin_requests import (
    BrokerConsumeStatsFields,
    ConsumeStatsFields,
    QueueEntriesFields,
    StatsFields,
    TopicFields,
    TopicGroupFields,
)
from tandemq.codec.remoting.fastjson import Raw, dumps, dumps_java, queue_key
from tandemq.codec.remoting.requests import read_fields
from tandemq.metrics import StatsSnapshot
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.consume_queue import ConsumeQueue

ENTRIES_MAX = 4_096
"""Maximum number of entries of a queue in one response."""
QUEUES_PER_SLICE = 32
"""Queues, or groups without any, in one slice of a response; records are read for each."""
KEYS_PER_SLICE = 2_048


class QueueInfoProcessor(Feature):
    """Handle requests of operators about queues and the progress of groups."""

    def __init__(self, kernel: Kernel, stats: Stats) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._clients = kernel.clients
        self._pulls = kernel.features.find(Pulls)
        self._stats = stats
        self._own = kernel.own
        self._current = kernel.current
        self._sliced = kernel.sliced_responses

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.GET_TOPIC_STATS_INFO: Request(self._on_topic_stats, only_reads=True),
            Code.GET_CONSUME_STATS: Request(self._on_consume_stats, only_reads=True),
            Code.GET_BROKER_CONSUME_STATS: Request(self._on_all_consume_stats, only_reads=True),
            Code.QUERY_TOPIC_CONSUME_BY_WHO: Request(self._on_groups_of_topic),
            Code.QUERY_CONSUME_TIME_SPAN: Request(self._on_time_span, only_reads=True),
            Code.QUERY_CONSUME_QUEUE: Request(self._on_entries, only_reads=True),
            Code.VIEW_BROKER_STATS_DATA: Request(self._on_counter),
        }

    # Topics.

    def _on_topic_stats(self, link: Link, command: Command, now: Now) -> Command | None:
        name = read_fields(TopicFields, command.fields).topic
        topic = self._topics.get(name)
        if topic is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        return self._sliced.begin(link, command, self._topic_stats(name, topic.config.write_queue_nums), now)

    def _topic_stats(self, name: str, queues: int) -> Slices:
        found: list[bytes] = []
        for queue_id in range(queues):
            if queue_id and queue_id % QUEUES_PER_SLICE == 0:
                yield
            low, high = self._bounds(name, queue_id)
            stats = {
                "lastUpdateTimestamp": self._time_at(name, queue_id, high - 1),
                "maxOffset": high,
                "minOffset": low,
            }
            found.append(self._of_queue(name, queue_id, stats))
        rate = dumps_java(self._stats.per_second("TOPIC_PUT_NUMS", name))
        return b'{"offsetTable":{%b},"topicPutTps":%b}' % (b",".join(found), rate)

    def _of_queue(self, topic: str, queue_id: int, facts: dict[str, int]) -> bytes:
        """Return facts about a queue as a member of a JSON object whose keys are queues."""
        return b"%b:%b" % (self._key(topic, queue_id).encode(), dumps(facts))

    def _on_groups_of_topic(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(TopicFields, command.fields).topic
        groups = {group.name for group in self._clients.consumers.values() if name in group.subscriptions}
        groups.update(self._offsets.groups_of(name))
        return command.answer(ResponseCode.SUCCESS, body=dumps({"groupList": sorted(groups)}))

    def _key(self, topic: str, queue_id: int) -> Raw:
        return queue_key(topic, self._current.config.broker_name, queue_id)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._store.queues.get((topic, queue_id))

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._queue(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def _time_at(self, topic: str, queue_id: int, queue_offset: int, default: int = 0) -> int:
        """Return the store time of a message; `default` if it does not exist."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return default
        return self._store.stored_ms(queue, queue_offset) or default

    # Groups.

    def _on_consume_stats(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ConsumeStatsFields, command.fields)
        group = fields.consumer_group
        listed = [name for name in fields.topic_list.split(";") if name]
        if listed:
            topics = [name for name in listed if self._topics.get(name) is not None]
        else:
            topics = self._consumed(group, [fields.topic] if fields.topic.strip() else None)
        return self._sliced.begin(link, command, self._consume_stats(group, topics), now)

    def _consume_stats(self, group: str, topics: list[str]) -> Slices:
        """Build the body in slices: topics that are deleted meanwhile are left out from then on."""
        queues: list[bytes] = []
        rate = 0.0
        for topic in dict.fromkeys(topics):
            known = self._topics.get(topic)
            if known is None:
                continue
            for queue_id in range(known.config.read_queue_nums):
                if queues and len(queues) % QUEUES_PER_SLICE == 0:
                    yield
                queues.append(self._of_queue(topic, queue_id, self._progress_in(topic, group, queue_id)))
            rate += self._rate(topic, group)
        return b'{"consumeTps":%b,"offsetTable":{%b}}' % (dumps_java(rate), b",".join(queues))

    def _consumed(self, group: str, topics: list[str] | None) -> list[str]:
        """Return the existing topics of a group; of an online group only those that it subscribes to."""
        online = self._clients.consumers.get(group)
        wanted = online.subscriptions if online is not None else {}
        candidates = self._offsets.topics_of(group) if topics is None else topics
        return sorted(
            topic for topic in candidates if self._topics.get(topic) is not None and (not wanted or topic in wanted)
        )

    def _progress_in(self, topic: str, group: str, queue_id: int) -> dict[str, int]:
        # In a queue of a static topic "none" and 0 differ: a group without an offset may have one in an older segment.
        none = -1 if topic in self._topics.mappings.table else 0
        offset = self._offsets.get(topic, group, queue_id)
        consumed = none if offset is None else max(0, offset)
        return {
            "brokerOffset": self._bounds(topic, queue_id)[1],
            "consumerOffset": consumed,
            "lastTimestamp": self._time_at(topic, queue_id, consumed - 1),
            "pullOffset": max(consumed, self._pulls.counters.next_offset(topic, group, queue_id)),
        }

    def _rate(self, topic: str, group: str) -> float:
        return self._stats.per_second("GROUP_GET_NUMS", f"{topic}@{group}")

    def _on_all_consume_stats(self, link: Link, command: Command, now: Now) -> Command | None:
        is_order = read_fields(BrokerConsumeStatsFields, command.fields).is_order
        return self._sliced.begin(link, command, self._all_progress(is_order=is_order), now)

    def _all_progress(self, *, is_order: bool) -> Slices:
        """Build the body in slices: topics and groups that are deleted meanwhile are left out from then on."""
        topics_of: dict[str, list[str]] = {}
        for number, key in enumerate(list(self._offsets.table), 1):
            topic, _, group = key.rpartition(SEPARATOR)
            topics_of.setdefault(group, []).append(topic)
            if number % KEYS_PER_SLICE == 0:
                yield
        groups: list[bytes] = []
        behind = built = 0
        for group in list(self._groups.table):
            found: list[bytes] = []
            for topic in self._consumed(group, topics_of.get(group, [])):
                known = self._topics.get(topic)
                if known is None or (is_order and not known.config.order):
                    continue
                queues: list[bytes] = []
                for queue_id in range(known.config.write_queue_nums):
                    progress = self._progress_in(topic, group, queue_id)
                    behind += progress["brokerOffset"] - progress["consumerOffset"]
                    queues.append(self._of_queue(topic, queue_id, progress))
                    built += 1
                    if built % QUEUES_PER_SLICE == 0:
                        yield
                rate = dumps_java(self._rate(topic, group))
                found.append(b'{"consumeTps":%b,"offsetTable":{%b}}' % (rate, b",".join(queues)))
            groups.append(b"{%b:[%b]}" % (dumps_java(group), b",".join(found)))
            built += not found
            if not found and built % QUEUES_PER_SLICE == 0:
                yield
        address = dumps_java(self._own.address)
        return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d}' % (address, b",".join(groups), behind)

    def _on_time_span(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(TopicGroupFields, command.fields)
        topic = self._topics.get(fields.topic)
        if topic is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{fields.topic}] not exist")
        spans = self._time_spans(fields.topic, fields.group, topic.config.write_queue_nums, now)
        return self._sliced.begin(link, command, spans, now)

    def _time_spans(self, topic: str, group: str, queues: int, now: Now) -> Slices:
        spans: list[dict[str, object]] = []
        for queue_id in range(queues):
            if queue_id and queue_id % QUEUES_PER_SLICE == 0:
                yield
            spans.append(self._span(topic, group, queue_id, now))
        return dumps({"consumeTimeSpanSet": spans})

    def _span(self, topic: str, group: str, queue_id: int, now: Now) -> dict[str, object]:
        low, high = self._bounds(topic, queue_id)
        consumed = self._offsets.get(topic, group, queue_id) or 0
        earliest = self._time_at(topic, queue_id, low, -1)
        waiting_since = self._time_at(topic, queue_id, consumed)
        return {
            "consumeTimeStamp": self._time_at(topic, queue_id, consumed - 1, -1) if consumed > 0 else earliest,
            "delayTime": max(0, now.wall_ms - waiting_since) if waiting_since else 0,
            "maxTimeStamp": self._time_at(topic, queue_id, high - 1, -1),
            "messageQueue": {"brokerName": self._current.config.broker_name, "queueId": queue_id, "topic": topic},
            "minTimeStamp": earliest,
        }

    # One queue, one counter.

    def _on_entries(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueEntriesFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        if queue is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"{fields.queue_id}@{fields.topic} is not exist!")
        low, high = queue.min_offset, queue.max_offset
        body: dict[str, object] = {"maxQueueIndex": high, "minQueueIndex": low}
        if fields.consumer_group is not None:
            body |= self._filter_of(fields.consumer_group, fields.topic)
        if not low <= fields.index < high:
            return command.answer(
                ResponseCode.SUCCESS,
                body=dumps(body),
                remark=f"Index {fields.index} of {fields.queue_id}@{fields.topic} is not exist!",
            )
        count = max(0, min(fields.count, ENTRIES_MAX))
        body["queueData"] = [
            {"eval": False, "physicOffset": log_offset, "physicSize": size, "tagsCode": code}
            | ({"msg": "this entry is a placeholder without a message"} if is_hole(size, code) else {})
            | ({"msg": "this entry is damaged"} if size <= 0 or log_offset < 0 else {})
            for log_offset, size, code in self._store.entries(queue, fields.index, count)
        ]
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def _filter_of(self, group: str, topic: str) -> dict[str, object]:
        online = self._clients.consumers.get(group)
        found = online.subscriptions.get(topic) if online is not None else None
        if found is None:
            return {"filterData": f"{group}@{topic} is not online!"}
        return {"filterData": "null", "subscriptionData": msgspec.to_builtins(found)}

    def _on_counter(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(StatsFields, command.fields)
        found = self._stats.summaries(fields.stats_name, fields.stats_key)
        if found is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"The stats <{fields.stats_name}> <{fields.stats_key}> not exist"
            )
        body = {
            "statsDay": _summary(found.day),
            "statsHour": _summary(found.hour),
            "statsMinute": _summary(found.minute),
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))


def _summary(summary: StatsSnapshot) -> dict[str, float]:
    return {"avgpt": summary.per_time, "sum": summary.total, "tps": summary.per_second}
