"""Pulls that select messages by SQL92 expressions."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandemq.broker.features.pulls import message_reader, processor
from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.filter.parser import EXPRESSION_CHARACTERS_MAX, compile_filter
from tandemq.codec.remoting.fastjson import dumps
from tandemq.engine import evaluation_cost, record_properties
from tandemq.load.wire.frames import PullFrames
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import CLIENT, Harness, messages_in

OK = ResponseCode.SUCCESS
AGAIN = ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path, property_filter_enable=True, config_black_list=())


def sql(broker: Harness, expression: str, offset: int = 0, **named: object) -> Command | None:
    return broker.pull("TopicA", offset, expression=expression, kind="SQL92", **named)  # type: ignore[arg-type]


def bodies(answer: Command | None) -> list[bytes]:
    assert answer is not None
    assert answer.code == OK, answer.remark
    return [message.body for message in messages_in(answer)]


def test_messages_that_match_are_delivered(broker: Harness) -> None:
    for number in range(20):
        broker.send("TopicA", b"%d" % number, TAGS="even" if number % 2 == 0 else "odd", n=str(number))
    broker.send("TopicA", b"none")
    assert bodies(sql(broker, "n BETWEEN 3 AND 6")) == [b"3", b"4", b"5", b"6"]
    assert bodies(sql(broker, "TAGS = 'odd' AND n > 14")) == [b"15", b"17", b"19"]
    assert bodies(sql(broker, "n IS NULL")) == [b"none"]
    first = sql(broker, "n >= 0", most=3)
    assert bodies(first) == [b"0", b"1", b"2"]
    assert first is not None
    assert first.fields["nextBeginOffset"] == "3"
    nothing = sql(broker, "n > 100")
    assert nothing is not None
    assert (nothing.code, nothing.fields["nextBeginOffset"]) == (AGAIN, "21")


@pytest.mark.parametrize("seed", range(5))
def test_filtered_messages_are_those_of_all_that_match(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(message_reader, "EXAMINED_AT_ONCE", random.choice((1, 7, 64)))
    monkeypatch.setattr(message_reader, "EXAMINED_BYTES_MAX", random.choice((1, 3_000, 1 << 20)))
    monkeypatch.setattr(message_reader, "EXAMINED_AT_ONCE_BYTES", random.choice((500, 256 << 10)))
    monkeypatch.setattr(message_reader, "EVALUATION_COST_MAX", random.choice((1, 3_000, 1 << 20)))
    wanted = []
    for number in range(150):
        n = random.randrange(10)
        body = b"%d " % number + bytes(random.randrange(200))
        broker.send("TopicA", body, n=str(n))
        if n < 3:
            wanted.append(body)
    found: list[bytes] = []
    offset = 0
    while offset < 150:
        answer = sql(broker, "n < 3", offset, most=random.randint(1, 40))
        assert answer is not None
        assert answer.code in (OK, AGAIN)
        found += bodies(answer) if answer.code == OK else []
        assert offset < int(answer.fields["nextBeginOffset"]) <= 150
        offset = int(answer.fields["nextBeginOffset"])
    assert found == wanted


def test_held_pull_is_woken_by_a_message_that_matches(broker: Harness) -> None:
    broker.send("TopicA")
    assert sql(broker, "n = 5", 1, wait_ms=15_000) is None
    broker.open(5)
    broker.send("TopicA", b"other", link=5, n="4")
    broker.send("TopicA", b"bad", link=5, n="five")
    assert broker.inbox[CLIENT] == []
    broker.send("TopicA", b"five", link=5, n="5")
    (answer,) = broker.inbox[CLIENT]
    assert bodies(answer) == [b"five"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_costly_filters_examine_fewer_messages(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """The cost of a pull is limited, by whichever way its messages are examined."""
    for _ in range(100):
        broker.send("TopicA", n="1")
    large = " OR ".join(["n = 2"] * 490)
    monkeypatch.setattr(message_reader, "EXAMINED_ENTRIES_MAX", 60)
    cost = evaluation_cost(980, _stored_bytes(broker))
    monkeypatch.setattr(message_reader, "EVALUATION_COST_MAX", 32 * cost - 1)
    if is_damaged:
        monkeypatch.setattr(message_reader.MessageReader, "_select_matching", lambda *_: None)
    for expression, examined in (("n = 2", "60"), (large, "32"), (f"{large} OR n = 1", "32")):
        answer = sql(broker, expression, most=1000)
        assert answer is not None
        assert answer.fields["nextBeginOffset"] == examined


def _stored_bytes(broker: Harness) -> int:
    """Return the bytes of the properties of the first message."""
    log = broker.node.store.log
    (record,) = record_properties(bytes(log.read(log.start, broker.node.store.queue("TopicA", 0).entry(0).size)))
    return record.size


def test_costly_pulls_of_a_turn_are_spread_over_several(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(50):
        broker.send("TopicA", n="1")
    cost = evaluation_cost(2, _stored_bytes(broker)) * 50
    monkeypatch.setattr(processor, "TURN_BYTES_MAX", 3 * cost * processor.EVALUATION_BYTES)
    frames = PullFrames("TopicA", expression="n = 2", expression_type="SQL92")
    pulls = [(CLIENT, frames.frame(0, 0, opaque)) for opaque in range(8)]
    broker.run_jobs = False  # their ends are turns as well
    broker.turn(pulls)
    counts = [_answers(broker)]
    while sum(counts) < 8:
        broker.turn()
        counts.append(_answers(broker))
    assert counts == [3, 3, 2]


def _answers(broker: Harness) -> int:
    return sum(broker.answer_to(opaque) is not None for opaque in range(8))


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("a >", "SQL92"), ("", "SQL92"), ("a", "FOO"), ("a = 1" + " " * EXPRESSION_CHARACTERS_MAX, "SQL92")],
)
def test_invalid_expression_is_refused_and_never_matches_everything(
    broker: Harness, expression: str, kind: str
) -> None:
    broker.send("TopicA", a="1")
    answer = broker.pull("TopicA", 0, expression=expression, kind=kind)
    assert answer is not None
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark


def test_setting_refuses_filters(broker: Harness) -> None:
    broker.send("TopicA", a="1")
    changed = broker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"enablePropertyFilter=false")
    assert changed.code == OK, changed.remark
    answer = sql(broker, "a = 1")
    assert answer is not None
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The broker does not support consumer to filter message by SQL92",
    )
    assert check(broker, "a = 1").code == ResponseCode.SYSTEM_ERROR


# Subscriptions by heartbeat.


def subscribed(broker: Harness, version: int = 0, offset: int = 0, topic: str = "TopicA") -> Command:
    fields = {
        "consumerGroup": "G", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 0,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": version,
    }  # fmt: skip
    return broker.ask(RequestCode.PULL_MESSAGE, fields)


def check(broker: Harness, expression: str, kind: str = "SQL92") -> Command:
    subscription = {"topic": "TopicA", "subString": expression, "expressionType": kind}
    body = {"clientId": "c", "group": "G", "subscriptionData": subscription, "namespace": None}
    return broker.ask(RequestCode.CHECK_CLIENT_CONFIG, None, dumps(body))


def test_group_consumes_by_the_filter_of_its_heartbeat(broker: Harness) -> None:
    for number in range(4):
        broker.send("TopicA", b"%d" % number, n=str(number))
    broker.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
    assert bodies(subscribed(broker)) == [b"2", b"3"]
    broker.now.wall_ms += 1
    broker.heartbeat("G", {"TopicA": "n > 2"}, kind="SQL92")
    assert bodies(subscribed(broker, version=broker.now.wall_ms)) == [b"3"]
    assert subscribed(broker, version=broker.now.wall_ms + 1).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    broker.now.wall_ms += 1
    assert broker.heartbeat("G", {"TopicA": "n >"}, kind="SQL92").code == OK
    assert subscribed(broker).code == ResponseCode.FILTER_DATA_NOT_EXIST
    broker.now.wall_ms += 1
    broker.heartbeat("G", {"TopicA": "*"})
    assert len(bodies(subscribed(broker))) == 4


def retried(broker: Harness, from_topic: str, body: bytes, n: int) -> None:
    broker.send("%RETRY%G", body, RETRY_TOPIC=from_topic, TAGS="t", n=str(n))


@pytest.mark.parametrize("has_own_expression", [False, True])
def test_retry_topic_is_selected_by_the_expressions_of_the_topics_behind_it(
    broker: Harness, has_own_expression: bool
) -> None:
    for number in range(1, 10):
        retried(broker, "TopicA", b"a%d" % number, number)
    retried(broker, "TopicB", b"b", 50)
    retried(broker, "TopicC", b"c", 0)

    def read() -> list[bytes]:
        if has_own_expression:
            return bodies(broker.pull("%RETRY%G", group="G"))
        return bodies(subscribed(broker, topic="%RETRY%G"))

    broker.heartbeat("G", {"TopicA": "n > 5", "TopicB": "n > 100", "%RETRY%G": "*"}, kind="SQL92")
    assert len(read()) == 11  # by default all
    assert broker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"filterSupportRetry=true").code == OK
    assert read() == [b"a6", b"a7", b"a8", b"a9", b"c"]
    broker.now.wall_ms += 1
    broker.heartbeat("G", {"TopicA": "n > 8", "TopicB": "n > 1", "%RETRY%G": "*"}, kind="SQL92")
    assert read() == [b"a9", b"b", b"c"]
    if has_own_expression:
        assert bodies(broker.pull("%RETRY%G", group="G", expression="t")) == [b"a9", b"b", b"c"]
        nothing = broker.pull("%RETRY%G", group="G", expression="other")
        assert nothing is not None
        assert nothing.code == AGAIN
    assert broker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"enablePropertyFilter=false").code == OK
    assert len(read()) == 11


def test_same_expression_with_a_newer_version_is_current(broker: Harness) -> None:
    broker.send("TopicA", b"5", n="5")
    for _ in range(3):
        broker.now.wall_ms += 1
        broker.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
        assert bodies(subscribed(broker, version=broker.now.wall_ms)) == [b"5"]


@pytest.mark.parametrize(
    ("expression", "kind", "code"),
    [
        ("a > 1", "SQL92", OK),
        ("a >", "SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("a", "FOO", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("a || b", "TAG", OK),
    ],
)
def test_consumers_ask_at_their_start_whether_their_filter_is_valid(
    broker: Harness, expression: str, kind: str, code: int
) -> None:
    assert check(broker, expression, kind).code == code


def table(broker: Harness) -> dict[str, object]:
    found = broker.node.kernel.filters.find("TopicA", "G")
    return found.to_json() if found is not None else {}


def test_filters_are_kept_over_a_restart_and_for_a_day_without_consumers(broker: Harness) -> None:
    broker.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
    born = broker.now.wall_ms
    before = table(broker)
    assert before == {
        "bloomFilterData": before["bloomFilterData"],
        "bornTime": born,
        "clientVersion": born,
        "consumerGroup": "G",
        "dead": False,
        "deadTime": 0,
        "expression": "n > 1",
        "expressionType": "SQL92",
        "topic": "TopicA",
    }
    again = broker.restart()
    assert table(again)["dead"] is True
    assert table(again)["expression"] == "n > 1"
    again.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
    assert table(again)["dead"] is False
    again.close(CLIENT)
    assert table(again)["dead"] is True
    again.node.kernel.filters.clean(again.now.wall_ms + 86_399_999)
    assert table(again)
    again.node.kernel.filters.clean(again.now.wall_ms + 86_400_000)
    assert not table(again)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"expression":"a >"},"H":5}}}}']
)
def test_unreadable_table_is_ignored(broker: Harness, tmp_path: Path, content: bytes) -> None:
    broker.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
    broker.node.close()
    for path in (tmp_path / "config").glob("consumerFilter.json*"):
        path.write_bytes(content)
    again = Harness(tmp_path, property_filter_enable=True)
    assert not table(again)
    again.heartbeat("G", {"TopicA": "n > 1"}, kind="SQL92")
    assert table(again)


def test_memory_of_filters_is_limited(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandemq.broker.filter.consumer_filters.MEMORY_BYTES_MAX", 20_000)
    for number in range(10):
        broker.heartbeat(f"G{number}", {"TopicA": "n > 1"}, kind="SQL92", client_id=f"c{number}")
    kept = [number for number in range(10) if broker.node.kernel.filters.find("TopicA", f"G{number}")]
    assert 3 <= len(kept) < 10
    assert "too much memory" in caplog.text
    assert broker.pull("TopicA", group="G0") is not None


@pytest.mark.parametrize("seed", range(8))
def test_messages_are_examined_the_same_by_the_engine_and_one_by_one(
    broker: Harness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also how far a pull gets: with both engines the broker answers the same."""
    random = Random(seed)
    for _ in range(120):
        properties = {name: random.choice(("1", "2", "x", "\u4e2d")) for name in "abc" if random.random() < 0.8}
        broker.send("TopicA", bytes(random.randrange(400)), **properties)  # type: ignore[arg-type]
        if random.random() < 0.5:
            broker.send("TopicB", bytes(random.randrange(400)))
    monkeypatch.setattr(message_reader, "EXAMINED_AT_ONCE", random.choice((1, 7, 64)))
    for name, values in (
        ("EXAMINED_BYTES_MAX", (1, 3_000, 1 << 20)),
        ("EVALUATION_COST_MAX", (1, 3_000, 1 << 20)),
        ("EXAMINED_ENTRIES_MAX", (1, 30, 800)),
    ):
        monkeypatch.setattr(message_reader, name, random.choice(values))
    store = broker.node.store
    reader, queue = MessageReader(store.log, broker.node.kernel.damages), store.queue("TopicA", 0)
    for _ in range(100):
        offset, most = random.randrange(queue.max_offset), random.choice((1, 3, 32))
        compiled = compile_filter(random.choice(("a > 1", "a = b", "c IS NULL", "a <> 'x' OR b = '\u4e2d'", "a > 5")))
        limits: dict[str, Any] = {"most": most, "bytes_max": random.choice((1, 2_000, 1 << 20)), "limit": 1 << 62}
        found = reader.read_matching(queue, offset, compiled, **limits)
        expected = reader._examine(queue, offset, compiled, *limits.values())
        assert (b"".join(found.buffers), *found[1:]) == (b"".join(expected.buffers), *expected[1:])
