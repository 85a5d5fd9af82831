"""Messages of the sink in batches, without Spark: what one request holds, and what becomes of messages it cannot."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tandemq.client.core.calls import Ticket
from tandemq.client.producer.encoder import SendRequest
from tandemq.codec.record.record import decode_messages
from tandemq.errors import RecordTooLarge, RemoteError
from tandemq.model.message import Message, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.client_pool import cluster_client
from tandemq.spark.sources.cluster.options import sink_options
from tandemq.spark.sources.cluster.outgoing import BATCH_BYTES, BATCH_MESSAGES, COMPRESS_ABOVE_BYTES, unique_keys
from tandemq.spark.sources.cluster.parcels import EncodedParcel, Keyed, MessageParcel, make_batches, make_parcels
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.queue_choice import Lane
from tandemq.spark.sources.cluster.reader import PullSettings, read_ranges
from tandemq.spark.sources.cluster.row_sender import RowSender
from tests.spark.messages import make_topic


def keyed(topic: str, number: int, size: int = 1, **named: str) -> Keyed:
    return Message(topic, b"%d" % number + b"." * size, properties=named), f"{number:032X}"


def batches_of(some: list[Keyed]) -> list[MessageParcel]:
    return list(make_batches(((Lane(keyed[0].topic), keyed) for keyed in some), BATCH_MESSAGES))


def test_batch_has_one_topic_in_order_within_its_limits() -> None:
    some = [keyed("A" if number % 3 else "B", number, 2_000) for number in range(1_000)]
    batches = [parcel.messages for parcel in batches_of(some)]
    assert Counter(one for batch in batches for one in [key for _, key in batch]) == Counter(key for _, key in some)
    for batch in batches:
        assert len({message.topic for message, _ in batch}) == 1
        assert len(batch) <= BATCH_MESSAGES
        assert sum(len(message.body) for message, _ in batch) <= BATCH_BYTES
        assert [key for _, key in batch] == sorted(key for _, key in batch)
    assert len(batches) < 12


def test_messages_that_a_batch_cannot_hold_go_alone() -> None:
    alone = [
        keyed("A", 1, COMPRESS_ABOVE_BYTES),
        keyed("%RETRY%A", 2),
        keyed("A", 3, MSG_TYPE="reply"),
    ]
    some = [keyed("A", 0), *alone, keyed("A", 4)]
    assert [[int(key, 16) for _, key in one.messages] for one in batches_of(some)] == [[1], [2], [3], [0, 4]]
    lane = Lane("A", MessageQueue("A", "a", 0))
    in_order = make_batches(((lane, one) for one in some), BATCH_MESSAGES)
    assert [[int(key, 16) for _, key in one.messages] for one in in_order] == [[0], [1], [2], [3], [4]]
    assert batches_of([]) == []


def stored(cluster: LocalCluster, topic: str) -> list[tuple[bytes, str]]:
    """Body and unique key of every message of a topic."""
    found = []
    for (name, queue_id), queue in cluster.broker().node.store.queues.items():
        if name == topic and queue.max_offset:
            wanted = QueueRange(
                MessageQueue(topic, cluster.broker().node.config.broker_name, queue_id), 0, queue.max_offset
            )
            client = cluster_client(cluster.name_servers)
            for pulled in read_ranges(client, PullSettings(cluster.name_servers), [wanted], {}):
                found += [(one.body, one.properties["UNIQ_KEY"]) for one in decode_messages(pulled.data)]
    return found


def test_messages_of_batches_are_stored_once_with_their_keys(tandemq_broker: LocalCluster) -> None:
    for topic in ("A", "B"):
        make_topic(tandemq_broker.name_servers, topic)
    sender = RowSender(sink_options({"nameServer": tandemq_broker.name_servers, "topic": "A"}))
    some = [keyed("A" if number % 5 else "B", number, number % 900) for number in range(1_500)]
    large = [keyed("A", number, COMPRESS_ABOVE_BYTES) for number in range(1_500, 1_510)]
    try:
        sender.send(batches_of([*some, *large]))
        sender.flush()
    finally:
        sender.close()
    for topic in ("A", "B"):
        want = Counter((message.body, key) for message, key in [*some, *large] if message.topic == topic)
        assert Counter(stored(tandemq_broker, topic)) == want


def test_message_that_is_refused_is_named_and_the_others_of_its_batch_are_stored(tandemq_broker: LocalCluster) -> None:
    make_topic(tandemq_broker.name_servers, "A")
    sender = RowSender(sink_options({"nameServer": tandemq_broker.name_servers, "topic": "A"}))
    some = [keyed("A", number) for number in range(10)]
    bad = Message("A", b"x", properties={"p": "x" * 40_000}), f"{7:032X}"
    try:
        with pytest.raises(RecordTooLarge, match=f"1 messages are not acknowledged, the first to A with key {7:032X}"):
            sender.send([MessageParcel(Lane("A"), [*some[:7], bad, *some[8:]])])
            sender.flush()
    finally:
        sender.close()
    assert sorted(stored(tandemq_broker, "A")) == sorted(
        (message.body, key) for message, key in some if int(key, 16) != 7
    )


def test_encoded_rows_are_stored_once_with_their_keys(tandemq_broker: LocalCluster) -> None:
    for topic in ("A", "B"):
        make_topic(tandemq_broker.name_servers, topic)
    options = sink_options({"nameServer": tandemq_broker.name_servers})
    count = 1_510
    bodies = [b"%d" % number + b"." * (number % 900 if number < 1_500 else 5_000) for number in range(count)]
    topics = ["A" if number % 5 else "B" for number in range(count)]
    rows = pa.RecordBatch.from_pydict({"value": bodies, "topic": topics})
    keys = unique_keys("q", "", 0, 0, count)
    sender = RowSender(options)
    parcels = make_parcels(rows, options, keys, 0, sender.queues)
    assert all(isinstance(one, EncodedParcel) for one in parcels)
    assert sum(one.count for one in parcels) == count
    try:
        sender.send(parcels)
        sender.flush()
    finally:
        sender.close()
    for topic in ("A", "B"):
        want = [(body, keys[at * 32 : at * 32 + 32]) for at, body in enumerate(bodies) if topics[at] == topic]
        assert sorted(stored(tandemq_broker, topic)) == sorted(want)


def test_encoded_message_that_is_refused_is_named_and_the_others_are_stored(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(tandemq_broker.name_servers, "A")
    options = sink_options({"nameServer": tandemq_broker.name_servers, "topic": "A"})
    keys = unique_keys("q", "", 0, 0, 10)
    bad = keys[7 * 32 : 8 * 32]
    sender = RowSender(options)
    begin = sender._producer.begin_encoded

    def begin_or_refuse(request: SendRequest, **choice: Any) -> Ticket[Any]:
        if bad not in request.unique_keys:
            return begin(request, **choice)
        ticket: Ticket[Any] = Ticket()
        ticket.fail(RemoteError("MESSAGE_ILLEGAL", code=13))
        return ticket

    monkeypatch.setattr(sender._producer, "begin_encoded", begin_or_refuse)
    try:
        sender.send(make_parcels(pa.RecordBatch.from_pydict({"body": [b"x"] * 10}), options, keys, 0, sender.queues))
        with pytest.raises(RemoteError, match=f"1 messages are not acknowledged, the first to A with key {bad}: MESS"):
            sender.flush()
    finally:
        sender.close()
    assert sorted(key for _, key in stored(tandemq_broker, "A")) == sorted(
        keys[at * 32 : at * 32 + 32] for at in range(10) if at != 7
    )
