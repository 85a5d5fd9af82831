"""Streams whose topics, queues or brokers are gone for a while or for ever: loss only if the brokers say so."""

from typing import Any

import pytest

from tandemq.errors import NetworkError, OffsetGone
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.sources.cluster.offsets import GONE
from tests.spark.far import FarCluster
from tests.spark.messages import delete_topic, make_topic, numbered, send
from tests.spark.queries import Query
from tests.spec import spec


def send_each(names: str, topic: str, start: int, queues: int, each: int = 5) -> range:
    """Send some messages to each queue; returns their numbers."""
    for queue_id in range(queues):
        first = start + queue_id * each
        send(names, numbered(topic, first, first + each), queue=MessageQueue(topic, "broker-a", queue_id))
    return range(start, start + queues * each)


@spec("P34")
def test_other_topics_are_read_with_trigger_available_now_after_one_was_deleted(tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    for topic in ("A", "B"):
        make_topic(names, topic, 1)
    read = [*send_each(names, "A", 0, 1), *send_each(names, "B", 100, 1)]
    query = Query(names, subscribe="A,B")
    assert query.drain() == read
    delete_topic(names, "B")
    read += send_each(names, "A", 10, 1)
    query.restart(available_now=True)
    with pytest.raises(OffsetGone, match=r"B broker-a queue 0 is gone: its topic was deleted \(failOnDataLoss=false"):
        query.plan()
    query.restart(available_now=True, failOnDataLoss="false")
    assert query.drain() == sorted(read)
    # The loss was accepted once.
    read += send_each(names, "A", 20, 1)
    query.restart(available_now=True, failOnDataLoss="true")
    assert query.drain() == sorted(read)
    assert query.offset is not None
    assert query.offset[GONE] == {"B": {"broker-a": {"0": 5}}}


@spec("P34")
@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("selected", ["subscribe", "assign"])
def test_batch_planned_before_its_topic_got_fewer_queues(
    tandemq_broker: LocalCluster, available_now: bool, selected: str
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 4)
    chosen = {"assign": '{"Orders": {"broker-a": [0, 1, 2, 3]}}'} if selected == "assign" else {}
    query = Query(names, **chosen)
    first = send_each(names, "Orders", 0, 4)
    assert query.drain() == list(first)
    second = send_each(names, "Orders", 100, 4)
    query.plan()
    make_topic(names, "Orders", 2)
    gone = r"Orders broker-a queue 2 is gone: its topic has fewer queues, with offsets 5 to 9 \(failOnDataLoss=false"
    query.restart(available_now=available_now)
    with pytest.raises(OffsetGone, match=gone):
        query.plan()
    query.restart(available_now=available_now, failOnDataLoss="false")
    assert query.drain() == [*first, *second[:10]]
    third = send_each(names, "Orders", 200, 2)
    query.restart(available_now=available_now, failOnDataLoss="true")
    assert query.drain() == [*first, *second[:10], *third]
    # The queues are back: nothing of them is read twice, and nothing new is left out.
    make_topic(names, "Orders", 4)
    fourth = send_each(names, "Orders", 300, 4)
    query.restart(available_now=available_now)
    assert query.drain() == [*first, *second[:10], *third, *fourth]
    assert query.offset is not None
    assert GONE not in query.offset


@spec("P34")
def test_topic_gets_fewer_queues_between_plan_and_read(tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 2)
    query = Query(names)
    read = send_each(names, "Orders", 0, 2)
    query.step()
    tasks = query.plan()
    make_topic(names, "Orders", 1)
    gone = "5 messages of Orders broker-a queue 1, offsets 0 to 4, are gone: the topic has fewer queues"
    with pytest.raises(OffsetGone, match=gone):
        query.read(tasks)
    query.restart(failOnDataLoss="false")
    assert query.drain() == list(read[:5])


def advance(far: FarCluster, at: dict[str, Any] | None, triggers: int = 1, **options: Any) -> dict[str, Any]:
    """Run some triggers of a new run of a stream on A and T; returns its offset."""
    reader = far.stream(subscribe="A,T", startingOffsets="earliest", **options)
    at = reader.initialOffset() if at is None else at
    for _ in range(triggers):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    return at


def deleted(far: FarCluster) -> dict[str, Any]:
    """Return the offset of a stream that has read T, which was deleted then, and whose loss was accepted."""
    at = advance(far, None, triggers=3)
    far.delete("T")
    at = advance(far, at, failOnDataLoss="false")
    assert at[GONE] == {"T": {"a": {"0": 5, "1": 5}}}
    return at


@spec("P34")
@pytest.mark.parametrize("is_wanted", [True, False])
def test_offsets_of_a_topic_that_was_replaced_are_dropped(monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool) -> None:
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    at = deleted(far)
    run = far.stream(subscribe="A,T", failOnDataLoss="false")
    if not is_wanted:
        run.prepareForTriggerAvailableNow()
    far.create("T", 5)
    at = run.latestOffset(at, run.getDefaultReadLimit())
    # A run that reads what there was when it began leaves the topic to the next one.
    assert (GONE in at, at.get("T")) == (False, {"a": {"0": 0}} if is_wanted else None)
    at = advance(far, at, triggers=2, failOnDataLoss="false")
    assert at["T"] == {"a": {"0": 5}}
    far.queues["T"] = 2
    assert advance(far, at)["T"] == {"a": {"0": 5, "1": 0}}


@spec("P34")
def test_offsets_of_a_topic_that_was_replaced_between_two_triggers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    at = advance(far, None, triggers=3)
    far.create("T", 5)
    at = advance(far, at, triggers=2, failOnDataLoss="false")
    assert (at["T"], GONE in at) == ({"a": {"0": 5}}, False)
    far.queues["T"] = 2
    assert advance(far, at)["T"] == {"a": {"0": 5, "1": 0}}


@spec("P34")
@pytest.mark.parametrize("counts", [(5,), (3, 5), (9, 9, 9)])
def test_topic_whose_loss_was_accepted_is_read_from_its_start_when_it_is_created_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, counts: tuple[int, ...]
) -> None:
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    at = deleted(far)
    far.create("T", *counts)
    at = advance(far, at)
    assert (at["T"], GONE in at) == ({"a": {str(queue_id): 0 for queue_id in range(len(counts))}}, False)
    assert "T on a is not the topic that was read, and was gone: it is read from its start: of queue 0" in caplog.text
    at = advance(far, at)
    assert at["T"] == {"a": {str(queue_id): count for queue_id, count in enumerate(counts)}}
    # Its own loss is not accepted yet.
    far.create("T", *counts)
    with pytest.raises(OffsetGone, match="T on a is not the topic that was read: it was deleted and created again"):
        advance(far, at)


@spec("P34")
@pytest.mark.parametrize("counts", [(0, 7), (0, 0), (0, 7, 3)])
def test_topic_that_is_created_again_with_an_empty_queue_is_read_from_its_start(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """The message that was read and could be compared was in the queue that is empty now."""
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    starts = {"a": {str(queue_id): 0 for queue_id in range(len(counts))}}
    read = advance(far, None, triggers=3)
    at = deleted(far)
    far.create("T", *counts)
    at = advance(far, at)
    assert (at["T"], GONE in at) == (starts, False)
    far.counts[("T", 0)] = 9
    assert advance(far, at, triggers=2)["T"]["a"]["0"] == 9

    # The same between two triggers is loss.
    far.counts[("T", 0)] = 0
    says = "T on a is not the topic that was read: .*: queue 0 ends at 0, but was read up to 5 already, and no message"
    with pytest.raises(OffsetGone, match=says):
        advance(far, read)
    assert advance(far, read, failOnDataLoss="false")["T"] == starts


@spec("P34")
def test_topic_that_is_created_again_with_fewer_queues_is_read_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    at = deleted(far)
    # The message that could be compared was in queue 1.
    at["/witnesses"]["T"]["a"] = [1, 4, 1, 800]
    far.create("T", 7)
    assert advance(far, at)["T"] == {"a": {"0": 0}}


@spec("P34")
def test_queue_that_was_truncated_beside_a_message_that_is_still_there_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = FarCluster({"A": 1, "T": 2}, messages=5, monkeypatch=monkeypatch)
    at = advance(far, None, triggers=3)
    far.counts = {("T", 0): 7, ("T", 1): 3}
    with pytest.raises(OffsetGone, match=r"^T a queue 1 ends at 3, but was read up to 5 already"):
        advance(far, at)
    assert advance(far, at, failOnDataLoss="false")["T"] == {"a": {"0": 7, "1": 3}}


TOPICS = {f"T{number:04}": 2 for number in range(1_500)}


@pytest.mark.parametrize("loss", ["true", "false"])
def test_broker_that_restarts_within_a_poll_of_many_topics_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    far = FarCluster(TOPICS, messages=3, monkeypatch=monkeypatch)
    topics = ",".join(TOPICS)
    reader = far.stream(subscribe=topics, startingOffsets="earliest", failOnDataLoss=loss)
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    assert reader.latestOffset(start, limit) == start
    end = reader.latestOffset(start, limit)
    first = far.rounds

    def restart() -> None:
        """Leave after the first routes; be back, with all routes, before the brokers are looked up."""
        far.is_registered = far.rounds != first + 1 and far.rounds != first + 2

    far.on_round = restart
    assert reader.latestOffset(end, limit) == end
    assert far.rounds > first + 3


def test_queue_that_is_away_when_a_run_begins_is_read_in_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 1, "B": 1}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(subscribe="A,B")
    far.listed = {"A"}
    reader.prepareForTriggerAvailableNow()
    far.listed = {"A", "B"}
    start = {"A": {"a": {"0": 1}}, "B": {"a": {"0": 2}}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (end["A"], end["B"]) == ({"a": {"0": 3}}, {"a": {"0": 3}})
    far.messages = 9
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_name_server_that_lost_its_routes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 2, "B": 2}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(subscribe="A,B", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    far.listed = {"A"}
    reader.latestOffset(start, limit)
    with pytest.raises(NetworkError, match="do not list B a queue 0, and no broker answered that it is gone"):
        reader.latestOffset(start, limit)
    far.is_registered = False
    with pytest.raises(NetworkError, match=r"no member of a is registered at the name servers \(is it down\?"):
        reader.latestOffset(start, limit)
    far.is_registered = True
    lenient = far.stream(subscribe="A,B", startingOffsets="earliest", failOnDataLoss="false")
    end = lenient.latestOffset(start, limit)
    assert (end["A"], end["B"]) == ({"a": {"0": 3, "1": 3}}, {"a": {"0": 0, "1": 0}})
    far.is_up = False
    far.listed = set()
    assert lenient.latestOffset(end, limit) == end


def test_topic_that_appears_under_a_subscribed_name_is_read_by_a_stream_that_has_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far = FarCluster({"A": 1}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(subscribe="A,B", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    start = {"A": {"a": {"0": 3}}}
    for _ in range(2):
        assert reader.latestOffset(start, limit) == start
    assert [line for line in caplog.messages if "knows the topic" in line] == [
        "no name server knows the topic 'B': it is read when it exists"
    ]
    far.queues["B"] = 1
    far.listed.add("B")
    assert reader.latestOffset(start, limit)["B"] == {"a": {"0": 0}}


def test_topic_that_is_not_selected_any_more_is_loss_and_continues_when_it_is_selected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = FarCluster({"A": 1, "B": 1}, messages=3, monkeypatch=monkeypatch)
    start = {"A": {"a": {"0": 3}}, "B": {"a": {"0": 2}}}
    strict = far.stream(subscribe="A")
    limit = strict.getDefaultReadLimit()
    with pytest.raises(OffsetGone, match="B a queue 0 is not selected by the options any more"):
        strict.latestOffset(start, limit)
    without = far.stream(subscribe="A", failOnDataLoss="false").latestOffset(start, limit)
    assert without[GONE] == {"B": {"a": {"0": 2}}}
    assert far.stream(subscribe="A").latestOffset(without, limit) == without
    again = far.stream(subscribe="A,B").latestOffset(without, limit)
    assert (again["B"], GONE in again) == ({"a": {"0": 2}}, False)


def test_checkpoint_without_a_selected_topic_names_those_that_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 1, "B": 1}, messages=3, monkeypatch=monkeypatch)
    start = {"A": {"a": {"0": 3}}}
    strict = far.stream(subscribe="Aa,Ab")
    says = r"no queue of the checkpoint exists: .*, or the query selects other topics; no name server knows the topic "
    with pytest.raises(OffsetGone, match=rf"{says}'Aa' and 1 more \(failOnDataLoss"):
        strict.latestOffset(start, strict.getDefaultReadLimit())
    # Another topic exists: there is nothing to name, and nothing to say once the loss is accepted.
    other = far.stream(subscribe="B")
    with pytest.raises(OffsetGone, match=r"or the query selects other topics \(failOnDataLoss"):
        other.latestOffset(start, other.getDefaultReadLimit())


def test_unknown_name_beside_topics_of_the_checkpoint_is_no_error_whether_or_not_a_batch_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far = FarCluster({"A": 1}, messages=3, monkeypatch=monkeypatch)
    start, end = {"A": {"a": {"0": 1}}}, {"A": {"a": {"0": 2}}}
    for repeats in (False, True):
        reader = far.stream(subscribe="A,Typo")
        if repeats:
            reader.partitions(start, end)
        assert reader.latestOffset(end, reader.getDefaultReadLimit())["A"] == {"a": {"0": 3}}
    assert caplog.messages.count("no name server knows the topic 'Typo': it is read when it exists") == 2
