"""librdkafka as a reader, through confluent-kafka, run by the environment that has it.

    librdkafka_reader.py BOOTSTRAP TOPIC COUNT

It assigns all partitions and prints their bounds, then COUNT messages from the start, as lines of JSON; last the
offsets of two times in partition 0, and the errors of a member of a group and of a producer.
"""

import json
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

TIMEOUT_S = 60


def main(bootstrap: str, topic: str, count: str) -> None:
    """Read and print."""
    options: dict[str, object] = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    options |= {"check.crcs": True}
    consumer = Consumer(options)
    numbers = sorted(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
    bounds = [
        [number, *consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)]
        for number in numbers
    ]
    print(json.dumps(bounds), flush=True)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    for _ in range(int(count)):
        message = consumer.poll(TIMEOUT_S)
        if message is None or message.error() is not None:
            raise SystemExit(f"no message: {message and message.error()}")
        headers = {name: value.decode() for name, value in message.headers() or ()}
        key, (_, at) = message.key(), message.timestamp()
        fields = [message.partition(), message.offset(), at, key and key.decode(), message.value().decode(), headers]
        print(json.dumps(fields), flush=True)
    first, past = (
        consumer.offsets_for_times([TopicPartition(topic, 0, at)], timeout=TIMEOUT_S)[0].offset for at in (1, 1 << 45)
    )
    consumer.close()
    others = {"group": group_error(options, topic), "send": send_error(bootstrap, topic)}
    print(json.dumps({"first": first, "past": past} | others), flush=True)


def group_error(options: dict[str, object], topic: str) -> str:
    """Return the error that a member of a group gets."""
    consumer = Consumer(options)
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    return str(message.error().name())


def send_error(bootstrap: str, topic: str) -> str:
    """Return the error that a producer gets."""
    found: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"-", on_delivery=lambda error, _: found.append(error.name()))
    producer.flush(TIMEOUT_S)
    return found[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
