"""Header fields of requests that tests in several places send; `changes` by their names on the wire."""


def pull_fields(topic: str = "TopicA", queue_offset: int = 0, **changes: object) -> dict[str, object]:
    """Return the fields of PULL_MESSAGE, with the subscription in the request; sysFlag 4, and 6 to be held."""
    fields: dict[str, object] = {
        "consumerGroup": "group",
        "topic": topic,
        "queueId": 0,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    return fields | changes


def topic_fields(topic: str, queues: int = 2, **changes: object) -> dict[str, object]:
    """Return the fields of UPDATE_AND_CREATE_TOPIC."""
    fields: dict[str, object] = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    return fields | changes
