"""Requests and responses about a static topic as operators' tools write and read them; `chaos` and tests use them too.

They are not built from `model.queue_mapping`, so that a mistake there cannot hide one of a broker.

Source: RocketMQ MQAdminUtils, LogicQueueMappingItem, and TopicQueueMappingUtils.blockSeqRoundUp.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

BLOCK = 1_000
"""blockSeqSize of the tool, 10,000 by default."""
Segments = list[dict[str, Any]]


class TopicPart(NamedTuple):
    """Present or intended mapping of one broker: number of its queues, epoch, and segments by logical queue."""

    queues: int
    epoch: int
    hosted: dict[int, Segments]


def segment(gen: int, broker: str, queue_id: int, logic_offset: int) -> dict[str, Any]:
    """Return a segment; `logic_offset`: -1 while it is not known."""
    return {
        "gen": gen,
        "queueId": queue_id,
        "bname": broker,
        "logicOffset": logic_offset,
        "startOffset": 0,
        "endOffset": -1,
        "timeOfStart": -1,
        "timeOfEnd": -1,
    }


def next_start(end: int) -> int:
    """Return the logical offset of the segment behind one with this end: that of a block, half a block or more away."""
    whole, rest = divmod(end, BLOCK)
    return (whole + (1 if rest < BLOCK // 2 else 2)) * BLOCK


def mapping_body(
    topic: str, broker: str, hosted: Mapping[int, Segments], *, epoch: int, total_queues: int
) -> dict[str, Any]:
    """Return the intended mapping of one broker."""
    return {
        "topic": topic,
        "scope": "__global__",
        "totalQueues": total_queues,
        "bname": broker,
        "epoch": epoch,
        "dirty": False,
        "currIdMap": {},
        "hostedQueues": {str(number): segments for number, segments in hosted.items()},
    }


def update_request(mapping: Mapping[str, Any], queues: int, *, force: bool = False) -> Command:
    """Return the request 513, which writes the mapping of a broker. `queues`: number of the broker's queues."""
    fields = {
        "topic": mapping["topic"],
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "force": "true" if force else "false",
    }
    return Command(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=fields, body=dumps(mapping))


def read_request(topic: str) -> Command:
    """Return the request 351 for the mapping of a broker."""
    return Command(RequestCode.GET_TOPIC_CONFIG, fields={"topic": topic, "lo": "true"})


def part_in(answer: Command) -> TopicPart:
    """Return the mapping of a broker by its response to `read_request`; epoch -1: it has no mapping."""
    body = json.loads(answer.body)
    detail = body.get("mappingDetail") or {"epoch": -1, "hostedQueues": {}}
    hosted = {int(number): segments for number, segments in detail["hostedQueues"].items()}
    return TopicPart(body["writeQueueNums"], detail["epoch"], hosted)


def ends_request(topic: str) -> Command:
    """Return the request 202 for the ends of a broker's queues."""
    return Command(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": topic})


def end_in(answer: Command, queue_id: int) -> int | None:
    """Return the end of a queue, by the response to `ends_request`; None if there is no such queue."""
    for key, entry in loads(answer.body, is_trusted=True)["offsetTable"].items():
        if json.loads(key)["queueId"] == queue_id:
            return int(entry["maxOffset"])
    return None
