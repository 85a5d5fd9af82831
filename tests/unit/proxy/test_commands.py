"""Commands of operators to gRPC clients, and what operators see of them."""

from typing import Any

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.proxy.commands import COMMAND_MS, STACKS_CHARACTERS_MAX, WAITING_MAX
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.reports import CHANGES_MAX
from tests.unit.proxy.cluster import Client, ProxyCluster, Stream, code, message, resource

NOT_ONLINE = ResponseCode.CONSUMER_NOT_ONLINE


def begun(**more: Any) -> tuple[ProxyCluster, Client]:
    cluster = ProxyCluster(**more)
    cluster.topic("T")
    return cluster, cluster.client()


def consumers(cluster: ProxyCluster, group: str = "G", broker: int = 0) -> dict[str, Any]:
    """Return what an operator sees of a group's consumers, by client id; none if it is not online."""
    answer = cluster.ask(Command(Code.GET_CONSUMER_CONNECTION_LIST, fields={"consumerGroup": group}), broker)
    if answer.code == NOT_ONLINE:
        return {}
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {each["clientId"]: each for each in loads(answer.body)["connectionSet"]}


def joined(cluster: ProxyCluster, client: Client, group: str = "G", **more: Any) -> Stream:
    """Return the stream of a consumer that operators see."""
    stream = client.consume(group, "T", **more)
    for broker in range(len(cluster.brokers)):
        until_seen(cluster, client.client_id, group, broker)
    return stream


def until_seen(cluster: ProxyCluster, client_id: str, group: str = "G", broker: int = 0) -> None:
    cluster.until(lambda: client_id in consumers(cluster, group, broker))


def until_told(cluster: ProxyCluster, stream: Stream, count: int = 1) -> None:
    """Wait until the client has been told to consume so many messages."""
    cluster.until(lambda: len(stream.to_consume) >= count)


def took_ms(cluster: ProxyCluster, ticket: Ticket[Command]) -> int:
    """Wait for a response; return for how long."""
    return cluster.until(lambda: ticket.done)


def info(cluster: ProxyCluster, client_id: str = "c-1", *, stacks: bool, broker: int = 0) -> Ticket[Command]:
    fields = {"consumerGroup": "G", "clientId": client_id, "jstackEnable": str(stacks).lower()}
    return cluster.asking(Command(Code.GET_CONSUMER_RUNNING_INFO, fields=fields), broker)


def consume(cluster: ProxyCluster, client: Client, body: bytes = b"body", client_id: str = "c-1") -> Ticket[Command]:
    """Send a message, and have a consumer consume it."""
    sent = client.send(message("T", body, tag="t", user={"a": "b"}))
    assert code(sent.status) == "OK"
    stored = next(each for each in cluster.stored("T") if each.unique_key == sent.entries[0].message_id)
    fields = {"consumerGroup": "G", "clientId": client_id, "msgId": stored.offset_message_id, "topic": "T"}
    return cluster.asking(Command(Code.CONSUME_MESSAGE_DIRECTLY, fields=fields))


def say_result(stream: Stream, nonce: str, of: pb.Code = pb.Code.OK, text: str = "") -> None:
    result = pb.VerifyMessageResult(nonce=nonce)
    stream.say(pb.TelemetryCommand(status=pb.Status(code=of, message=text), verify_message_result=result))


def say_stacks(stream: Stream, nonce: str, stacks: str, of: pb.Code = pb.Code.OK) -> None:
    trace = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace=stacks)
    stream.say(pb.TelemetryCommand(status=pb.Status(code=of), thread_stack_trace=trace))


def answer(cluster: ProxyCluster, ticket: Ticket[Command]) -> Command:
    cluster.until(lambda: ticket.done)
    return ticket.result()


def test_operators_see_the_consumers_with_what_they_subscribe_to() -> None:
    cluster, client = begun(groups=2)
    entries = [
        pb.SubscriptionEntry(topic=resource("T"), expression=pb.FilterExpression(type=pb.TAG, expression="a || b")),
        pb.SubscriptionEntry(topic=resource("U"), expression=pb.FilterExpression(type=pb.SQL, expression="x > 1")),
    ]
    settings = pb.Settings(
        client_type=pb.ClientType.PUSH_CONSUMER,
        subscription=pb.Subscription(group=resource("G"), subscriptions=entries),
        user_agent=pb.UA(language=pb.Language.GOLANG, version="5.1.2"),
    )
    client.telemetry(settings)
    for broker in range(2):
        until_seen(cluster, "c-1", broker=broker)
        (seen,) = consumers(cluster, broker=broker).values()
        assert seen["clientAddr"].startswith("10.0.8.1:")
        assert {name: seen[name] for name in ("clientId", "language")} == {"clientId": "c-1", "language": "GO"}
        body = loads(
            cluster.ask(Command(Code.GET_CONSUMER_CONNECTION_LIST, fields={"consumerGroup": "G"}), broker).body
        )
        assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        table = {name: (each["subString"], each["expressionType"]) for name, each in body["subscriptionTable"].items()}
        assert table == {"T": ("a || b", "TAG"), "U": ("x > 1", "SQL92")}
        members = cluster.ask(Command(Code.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "G"}), broker)
        assert members.code == ResponseCode.SYSTEM_ERROR, "pulling consumers do not share queues with gRPC clients"
        retry = cluster.ask(Command(Code.GET_TOPIC_CONFIG, fields={"topic": "%RETRY%G"}), broker)
        assert retry.code == ResponseCode.SUCCESS, "tools look for the route of the retry topic"


def test_producers_are_no_consumers_and_consumers_are_seen_while_they_have_a_stream() -> None:
    cluster, client = begun()
    client.produce("T")
    other = cluster.client("c-2")
    stream = joined(cluster, other)
    assert set(consumers(cluster)) == {"c-2"}
    stream.end()
    cluster.until(lambda: not consumers(cluster))
    joined(cluster, other)
    other.lose()
    cluster.until(lambda: not consumers(cluster))


def test_a_consumer_that_changes_its_group_leaves_the_first_one() -> None:
    cluster, client = begun()
    joined(cluster, client)
    joined(cluster, client, "H")
    cluster.until(lambda: not consumers(cluster))
    assert set(consumers(cluster, "H")) == {"c-1"}


def test_consumers_are_seen_again_after_the_restart_of_a_broker_and_gone_after_the_death_of_the_proxy() -> None:
    cluster, client = begun()
    joined(cluster, client)
    cluster.broker.restart_after(500)
    cluster.run(1_000)
    cluster.until(lambda: consumers(cluster))
    cluster.proxy.kill()
    cluster.until(lambda: not consumers(cluster))


def test_the_proxy_that_has_a_client_now_is_the_one_that_is_asked() -> None:
    cluster, client = begun(proxies=2)
    joined(cluster, client)
    moved = cluster.client("c-1", proxy=1)
    second = moved.consume("G", "T")
    (seen,) = consumers(cluster).values()
    cluster.until(lambda: consumers(cluster)["c-1"]["clientAddr"] != seen["clientAddr"])
    client.lose()
    cluster.run(3_000)
    assert set(consumers(cluster)) == {"c-1"}, "the first proxy takes only its own consumers away"
    ticket = info(cluster, stacks=True)
    cluster.until(lambda: second.to_print)
    say_stacks(second, second.to_print[0].nonce, "main")
    assert answer(cluster, ticket).code == ResponseCode.SUCCESS


def test_many_consumers_are_reported_in_several_requests() -> None:
    cluster, client = begun()
    count = CHANGES_MAX + 20
    names = {f"{number:04}" for number in range(count)}
    for name in names:
        client.client_id = name
        stream = client.start("Telemetry", is_open=True)
        subscription = pb.Subscription(group=resource("G"), subscriptions=[pb.SubscriptionEntry(topic=resource("T"))])
        settings = pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=subscription)
        client.grpc.send(stream, pb.TelemetryCommand(settings=settings).SerializeToString())
        client.process.wake()
    cluster.until(lambda: set(consumers(cluster)) == names)
    client.lose()
    cluster.until(lambda: not consumers(cluster))


def test_a_message_is_consumed_directly_with_each_outcome() -> None:
    cluster, client = begun()
    stream = joined(cluster, client)
    cases = {
        pb.Code.OK: "CR_SUCCESS",
        pb.Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
        pb.Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
    }
    for number, (of, expected) in enumerate(cases.items()):
        ticket = consume(cluster, client, b"%d" % number)
        until_told(cluster, stream, number + 1)
        command = stream.to_consume[-1]
        assert command.message.body == b"%d" % number and command.message.topic == resource("T")
        assert command.message.system_properties.tag == "t" and command.message.user_properties == {"a": "b"}
        assert not command.message.system_properties.receipt_handle
        cluster.run(250)
        say_result(stream, command.nonce, of)
        found = answer(cluster, ticket)
        assert found.code == ResponseCode.SUCCESS, found.remark
        body = loads(found.body)
        assert cluster.proxy.node.commands.sent == number + 1 and not cluster.proxy.node.commands.waiting
        assert body["consumeResult"] == expected and 250 <= body["spentTimeMills"] < 1_000


def test_what_a_client_refuses_is_an_error_with_its_words() -> None:
    cluster, client = begun()
    stream = joined(cluster, client)
    ticket = consume(cluster, client)
    cluster.until(lambda: stream.to_consume)
    say_result(stream, stream.to_consume[0].nonce, pb.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, "not in order" * 1_000)
    found = answer(cluster, ticket)
    assert found.code == ResponseCode.SYSTEM_ERROR and found.remark is not None
    assert "c-1 answers VERIFY_FIFO_MESSAGE_UNSUPPORTED not in order" in found.remark and len(found.remark) < 1_000
    ticket = info(cluster, stacks=True)
    cluster.until(lambda: stream.to_print)
    say_stacks(stream, stream.to_print[0].nonce, "", pb.Code.NOT_IMPLEMENTED)
    found = answer(cluster, ticket)
    assert (found.code, found.remark) == (ResponseCode.SYSTEM_ERROR, "the client c-1 answers NOT_IMPLEMENTED")


def test_simple_consumers_and_unknown_ones_are_not_asked() -> None:
    cluster, client = begun()
    stream = joined(cluster, client, kind=pb.ClientType.SIMPLE_CONSUMER)
    found = answer(cluster, consume(cluster, client))
    assert found.code == ResponseCode.SYSTEM_ERROR and "no push consumer" in (found.remark or "")
    found = answer(cluster, consume(cluster, client, client_id="c-9"))
    assert found.code == ResponseCode.SYSTEM_ERROR and "not online" in (found.remark or "")
    assert not stream.to_consume
    body = loads(answer(cluster, info(cluster, stacks=False)).body)
    assert body["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"


def test_running_information_has_the_stacks_if_they_are_asked_for() -> None:
    cluster, client = begun()
    cluster.group("G", is_ordered=True)
    stream = joined(cluster, client)
    body = loads(answer(cluster, info(cluster, stacks=False)).body)
    assert not stream.to_print and "jstack" not in body
    properties = body["properties"]
    assert (properties["PROP_CONSUME_TYPE"], properties["PROP_CONSUMEORDERLY"]) == ("CONSUME_PASSIVELY", "true")
    assert 0 <= cluster.wall_ms - int(properties["PROP_CONSUMER_START_TIMESTAMP"]) < 5_000
    assert [each["topic"] for each in body["subscriptionSet"]] == ["T"]
    ticket = info(cluster, stacks=True)
    cluster.until(lambda: stream.to_print)
    say_stacks(stream, stream.to_print[0].nonce, "main\n  at Main\n" + "x" * STACKS_CHARACTERS_MAX)
    stacks = loads(answer(cluster, ticket).body)["jstack"]
    assert stacks.startswith("main\n  at Main\n") and len(stacks) == STACKS_CHARACTERS_MAX


def test_a_client_that_does_not_answer_is_an_error_in_time() -> None:
    cluster, client = begun()
    stream = joined(cluster, client)
    for is_consumed in (True, False):
        ticket = consume(cluster, client) if is_consumed else info(cluster, stacks=True)
        assert COMMAND_MS - 100 <= took_ms(cluster, ticket) <= COMMAND_MS + 500
        found = ticket.result()
        assert found.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert found.remark == "the client c-1 did not answer within 4.5 s"
    say_result(stream, stream.to_consume[0].nonce)  # too late: it is dropped, and the stream goes on
    again = info(cluster, stacks=True)
    cluster.until(lambda: len(stream.to_print) == 2)
    say_stacks(stream, stream.to_print[1].nonce, "main")
    assert answer(cluster, again).code == ResponseCode.SUCCESS


def test_a_client_that_goes_ends_its_commands_at_once() -> None:
    cluster, client = begun()

    def lose(_stream: Stream) -> None:
        client.lose()

    def replace(_stream: Stream) -> None:
        cluster.client("c-1").consume("G", "T")

    for end in (Stream.end, replace, lose):
        stream = joined(cluster, client)
        ticket = consume(cluster, client)
        until_told(cluster, stream)
        end(stream)
        assert took_ms(cluster, ticket) < 1_000
        found = ticket.result()
        assert (found.code, found.remark) == (ResponseCode.SYSTEM_ERROR, "the client c-1 has gone"), end


def test_only_the_first_answer_of_the_stream_that_was_asked_counts() -> None:
    cluster, client = begun()
    stream = joined(cluster, client)
    other = joined(cluster, cluster.client("c-2"))
    ticket = consume(cluster, client)
    cluster.until(lambda: stream.to_consume)
    nonce = stream.to_consume[0].nonce
    say_result(other, nonce)
    say_result(stream, "no such nonce")
    say_result(stream, "")
    say_stacks(stream, nonce, "stacks instead of a result")
    cluster.run(500)
    assert not ticket.done
    say_result(stream, nonce, pb.Code.FAILED_TO_CONSUME_MESSAGE)
    say_result(stream, nonce)
    assert loads(answer(cluster, ticket).body)["consumeResult"] == "CR_LATER"
    cluster.run(500)
    assert stream.call.status is None and other.call.status is None


def test_a_message_that_cannot_be_read_and_too_many_commands_are_refused() -> None:
    cluster, client = begun()
    joined(cluster, client)
    node = cluster.proxy.node
    commands, now = node.commands, Now(1_000_000, 1)
    fields = {"consumerGroup": "G", "clientId": "c-1", "jstackEnable": "true"}
    broken = Command(Code.CONSUME_MESSAGE_DIRECTLY, fields=fields, body=b"no record")
    refused = node.client.remoting.on_request(cluster.broker.address, broken, now)
    assert refused is not None and refused.code == ResponseCode.SYSTEM_ERROR and "record" in (refused.remark or "")
    nameless = node.client.remoting.on_request(cluster.broker.address, Command(Code.GET_CONSUMER_RUNNING_INFO), now)
    assert nameless is not None and nameless.code == ResponseCode.SYSTEM_ERROR
    answers = [
        commands.running_info(
            cluster.broker.address, Command(Code.GET_CONSUMER_RUNNING_INFO, number, fields=dict(fields)), now
        )
        for number in range(WAITING_MAX + 1)
    ]
    assert answers[:-1] == [None] * WAITING_MAX and commands.waiting == WAITING_MAX
    last = answers[-1]
    assert last is not None and last.code == ResponseCode.SYSTEM_BUSY
