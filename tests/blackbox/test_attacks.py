"""What one client can make a broker keep: long subscriptions, held pulls, locks, offsets, groups. Counts are in the
thousands, bodies as large as a frame; what the broker holds meanwhile and afterwards is what it held before, within
64 MiB.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

import pytest

from tandemq.model.codes import RequestCode, ResponseCode
from tests.blackbox.pair import Start
from tests.blackbox.programs import Caller, Program, wait_until
from tests.request_fields import pull_fields
from tests.samples import every

SLACK_KIB = 64 << 10
IN_FLIGHT = 50
Request = tuple[int, dict[str, object], bytes]
Attack = Callable[[], Iterator[Request | None]]
"""Requests; None: the response to the last one is awaited, and those behind it come on one more connection."""


def pull_with(subscription: str, wait_ms: int, number: int) -> Request:
    changes = {"consumerGroup": f"g{number}", "suspendTimeoutMillis": wait_ms, "subscription": subscription}
    return RequestCode.PULL_MESSAGE, pull_fields("TopicA", 1, sysFlag=6, **changes), b""


def subscriptions_of_a_whole_frame() -> Iterator[Request]:
    """Fifteen megabytes each were kept once."""
    return (pull_with("||".join([f"{number}tag" + "x" * 5_000] * 2_900), 0, number) for number in range(20))


def held_pulls_of_long_subscriptions() -> Iterator[Request]:
    return (pull_with("a||" * 1_300_000 + f"t{number}", 20_000, number) for number in range(60))


def held_pulls_of_the_longest_subscription_allowed() -> Iterator[Request]:
    return (
        pull_with(f"{number}||" + "||".join(f"{at:0100d}" for at in range(600)), 20_000, 0) for number in range(2_000)
    )


def held_pulls_with_text_that_is_not_used() -> Iterator[Request]:
    subscription = {"topic": "TopicA", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 0}
    group = {"groupName": "g0", "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription]}
    beat = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [group]}
    yield RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()
    for name in ("subscription", "expressionType"):
        for _ in range(40):
            code, fields, body = pull_with("*", 20_000, 0)
            yield code, fields | {"sysFlag": 2, name: "x" * 4_000_000}, body


def types_of_expressions_by_heartbeat() -> Iterator[Request]:
    for number in range(20):
        subscription = {"topic": "TopicA", "subString": "*", "expressionType": f"{number}" + "x" * 10_000_000}
        group = {"groupName": f"g{number}", "subscriptionDataSet": [subscription]}
        body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [group]}
        yield RequestCode.HEART_BEAT, {}, json.dumps(body).encode()


def groups_with_long_names_of_many_connections() -> Iterator[Request | None]:
    for number in range(100):
        if number:
            yield None
        groups = [{"groupName": f"{number}-{at}-".ljust(200, "x")} for at in range(1_000)]
        body = {"clientID": f"c{number}", "producerDataSet": groups[:500], "consumerDataSet": groups[500:]}
        yield RequestCode.HEART_BEAT, {}, json.dumps(body).encode()


def offsets_of_made_up_groups() -> Iterator[Request]:
    for number in range(50_000):
        fields: dict[str, object] = {
            "consumerGroup": f"{number}-".ljust(200, "x"),
            "topic": "TopicA",
            "queueId": 0,
            "commitOffset": 1,
        }
        yield RequestCode.UPDATE_CONSUMER_OFFSET, fields, b""


def locks_of_topics_that_do_not_exist() -> Iterator[Request]:
    for number in range(12):
        queues = [{"topic": f"Nothing{number}-{at}", "brokerName": "broker-a", "queueId": at} for at in range(50_000)]
        body = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
        yield RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode()


def offsets_of_queues_that_do_not_exist() -> Iterator[Request]:
    for number in range(20_000):
        fields: dict[str, object] = {
            "consumerGroup": f"g{number}",
            "topic": f"T{number}",
            "queueId": -5,
            "commitOffset": -7,
        }
        yield RequestCode.UPDATE_CONSUMER_OFFSET, fields, b""


def groups_by_heartbeat() -> Iterator[Request]:
    for number in range(100):
        groups = [
            {
                "groupName": f"group-{number}-{at}",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [],
            }
            for at in range(2_000)
        ]
        body = {"clientID": f"c{number}", "producerDataSet": [], "consumerDataSet": groups}
        yield RequestCode.HEART_BEAT, {}, json.dumps(body).encode()


def subscriptions_by_heartbeat() -> Iterator[Request]:
    for number in range(100):
        tags = [f"{number}-{at}-" + "x" * 80 for at in range(600)]
        subscriptions = [
            {
                "topic": f"T{topic}",
                "subString": "||".join(tags),
                "tagsSet": tags,
                "codeSet": list(range(600)),
                "subVersion": number,
                "classFilterMode": False,
            }
            for topic in range(30)  # of less than 4 MiB
        ]
        group = {
            "groupName": f"group-{number}",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        body = {"clientID": f"c{number}", "producerDataSet": [], "consumerDataSet": [group]}
        yield RequestCode.HEART_BEAT, {}, json.dumps(body).encode()


ATTACKS: list[tuple[Attack, set[int]]] = [
    (subscriptions_of_a_whole_frame, {ResponseCode.SUBSCRIPTION_PARSE_FAILED}),
    (held_pulls_of_long_subscriptions, {ResponseCode.SUBSCRIPTION_PARSE_FAILED}),
    (held_pulls_of_the_longest_subscription_allowed, {ResponseCode.SYSTEM_BUSY}),
    (locks_of_topics_that_do_not_exist, {ResponseCode.SUCCESS}),
    (offsets_of_queues_that_do_not_exist, {ResponseCode.TOPIC_NOT_EXIST}),
    (groups_by_heartbeat, {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}),
    (held_pulls_with_text_that_is_not_used, {ResponseCode.SUCCESS}),
    (types_of_expressions_by_heartbeat, {ResponseCode.SYSTEM_ERROR}),
    (groups_with_long_names_of_many_connections, {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}),
    (offsets_of_made_up_groups, {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}),
    (subscriptions_by_heartbeat, {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}),
]


def codes_until(caller: Caller, request: int) -> list[int]:
    """Return the codes of the responses that come until that to a request, which is the last of them."""
    codes: list[int] = []
    while True:
        command = caller.receive()
        if command.is_response:
            codes.append(command.code)
            if command.opaque == request:
                return codes


def carry_out(requests: Iterator[Request | None], broker: Program, stack: ExitStack) -> tuple[set[int], int]:
    """Send all requests. Returns the codes of the responses, and the most memory that the broker had meanwhile, KiB."""
    caller, last, seen, most = stack.enter_context(Caller(broker.port)), 0, set[int](), 0
    while some := list(islice(requests, IN_FLIGHT)):
        for request in some:
            if request is None:
                seen.update(codes_until(caller, last))
                caller = stack.enter_context(Caller(broker.port))
            else:
                last = caller.begin_request(*request)
        seen.update(codes_until(caller, caller.begin_request(RequestCode.TANDEM_PEER_INFO))[:-1])
        most = max(most, broker.memory_kib())
    return seen, most


@pytest.mark.parametrize(("attack", "codes"), every(2, ATTACKS), ids=[attack.__name__ for attack, _ in ATTACKS])
def test_attack_leaves_a_broker_with_the_memory_it_had(attack: Attack, codes: set[int], start: Start) -> None:
    broker = start("broker")
    with Caller(broker.port) as other:
        assert other.send(b"before") == ResponseCode.SUCCESS
        before = broker.memory_kib()
        with ExitStack() as stack:
            seen, most = carry_out(attack(), broker, stack)
            assert most - before < SLACK_KIB
        assert seen == codes
        wait_until(lambda: broker.memory_kib() - before < SLACK_KIB, "its memory is what it was")
        assert other.send(b"after") == ResponseCode.SUCCESS
