"""Telemetry, heartbeats, the end of clients, and a proxy that sends its clients away."""

from lab.grpc_client import ClientCall
from tandemq.grpc.server import GrpcStatus
from tandemq.proxy.clients import BACKOFF_S, DELAY_MS_MAX, EXPIRE_MS
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.service import CLIENT_ID, NAME
from tests.spec import spec
from tests.unit.proxy.cluster import Client, ProxyCluster, code, message, resource

OK, INVALID_ARGUMENT = 0, 3


def begun(**more: object) -> tuple[ProxyCluster, Client]:
    cluster = ProxyCluster(**more)  # type: ignore[arg-type]
    cluster.topic("T")
    return cluster, cluster.client()


def beat(client: Client) -> str:
    request = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)
    return code(client.call("Heartbeat", request, pb.HeartbeatResponse).status)


def terminate(client: Client) -> str:
    response = client.call(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(), pb.NotifyClientTerminationResponse
    )
    return code(response.status)


def test_the_settings_of_a_producer_come_back_completed() -> None:
    _, client = begun()
    settings = pb.Settings(
        client_type=pb.ClientType.PRODUCER,
        publishing=pb.Publishing(topics=[resource("T")]),
        user_agent=pb.UA(language=pb.Language.JAVA, version="5.2.0"),
        metric=pb.Metric(on=True),
    )
    stream = client.telemetry(settings)
    (answer,) = stream.commands
    assert code(answer.status) == "OK"
    found = answer.settings
    assert found.user_agent == settings.user_agent and found.client_type == settings.client_type
    assert list(found.publishing.topics) == [resource("T")] and not found.metric.on
    assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (4 << 20, True)
    policy = found.backoff_policy
    assert policy.max_attempts == 3 and policy.exponential_backoff.multiplier == 2
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert policy.exponential_backoff.max.ToMilliseconds() == 1_000
    assert stream.call.status is None, "the stream stays open"


def test_the_settings_of_consumers_come_back_with_those_of_their_group() -> None:
    cluster, client = begun()
    cluster.group("G", is_ordered=True, retries=5)
    for kind in (pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER):
        for group, attempts, is_ordered in (("G", 6, True), ("New", 17, False)):
            found = client.consume(group, "T", kind=kind).settings
            assert found.client_type == kind and found.subscription.group == resource(group)
            assert found.backoff_policy.max_attempts == attempts
            pauses = [pause.seconds for pause in found.backoff_policy.customized_backoff.next]
            assert tuple(pauses) == BACKOFF_S
            assert found.subscription.fifo == is_ordered
            assert found.subscription.receive_batch_size == 32
            assert found.subscription.long_polling_timeout.seconds == 20


def test_backoff_of_consumers_is_that_of_their_group() -> None:
    cluster, client = begun()
    exponential = {"initial": 2_000, "max": 60_000, "multiplier": 3}
    cluster.group("E", groupRetryPolicy={"type": "EXPONENTIAL", "exponentialRetryPolicy": exponential})
    cluster.group("D", groupRetryPolicy={"type": "EXPONENTIAL"})
    cluster.group("C", groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [500, -1, 1 << 62]}})
    for group, expected in (("E", (2_000, 60_000, 3)), ("D", (5_000, 7_200_000, 2))):
        found = client.consume(group, "T").settings.backoff_policy.exponential_backoff
        assert (found.initial.ToMilliseconds(), found.max.ToMilliseconds(), found.multiplier) == expected
    delays = client.consume("C", "T").settings.backoff_policy.customized_backoff.next
    assert [delay.ToMilliseconds() for delay in delays] == [500, 1, DELAY_MS_MAX]


def test_settings_are_answered_while_no_broker_responds() -> None:
    """Clients wait for them in their start, some without a time limit."""
    cluster, client = begun()
    cluster.broker.kill()
    start_us = cluster.world.now_us
    assert client.consume("G", "T", "Absent").settings.backoff_policy.max_attempts == 17
    assert cluster.world.now_us - start_us < 2_000_000
    start_us = cluster.world.now_us
    assert client.produce("T", "Absent").settings.publishing.max_body_size == 4 << 20
    assert client.consume("G").settings.backoff_policy.max_attempts == 17
    assert cluster.world.now_us - start_us < 100_000


def test_the_largest_number_of_retries_is_a_valid_number_of_attempts() -> None:
    cluster, client = begun()
    cluster.group("G", retries=(1 << 31) - 1)
    assert client.consume("G", "T").settings.backoff_policy.max_attempts == (1 << 31) - 1


def test_invalid_settings_end_the_stream() -> None:
    _, client = begun()
    bad = [
        pb.Settings(client_type=pb.ClientType.PRODUCER),
        pb.Settings(publishing=pb.Publishing(topics=[resource("a b")])),
        pb.Settings(publishing=pb.Publishing(topics=[resource("T")] * 4_097)),
        pb.Settings(subscription=pb.Subscription()),
        pb.Settings(subscription=pb.Subscription(group=resource("CID_RMQ_SYS_TRANS"))),
        pb.Settings(
            subscription=pb.Subscription(
                group=resource("G"), subscriptions=[pb.SubscriptionEntry(topic=resource("TBW102"))]
            )
        ),
    ]
    for settings in bad:
        stream = client.telemetry(settings)
        assert stream.call.status == INVALID_ARGUMENT and stream.call.text and not stream.commands
    for kind in (pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER):
        stream = client.consume("G", "T", kind=kind)
        (refused,) = stream.commands
        assert code(refused.status) == "UNSUPPORTED"
    assert beat(client) == "UNRECOGNIZED_CLIENT_TYPE"


def test_a_stream_without_client_id_ends_with_a_status() -> None:
    cluster, _ = begun()
    stream = cluster.client("").produce("T")
    cluster.run(20)
    assert [code(command.status) for command in stream.commands] == ["CLIENT_ID_REQUIRED"]
    assert stream.call.status == OK


def test_a_message_that_cannot_be_decoded_ends_the_call_alone() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    for method in ("SendMessage", "ReceiveMessage", "Heartbeat", "Telemetry"):
        call = client.grpc.start(f"/{NAME}/{method}", b"\xff", metadata={CLIENT_ID: "c"})
        client.process.wake()
        cluster.until(lambda call=call: call.status is not None)  # type: ignore[misc]
        assert call.status == 13 and "decoded" in call.text
    assert stream.call.status is None and beat(client) == "OK"


def test_what_a_client_answers_to_commands_is_ignored() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    stream.say(pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce="n")))
    stream.say(pb.TelemetryCommand())
    cluster.run(100)
    assert len(stream.commands) == 1 and stream.call.status is None


def test_a_client_that_opens_another_stream_loses_the_first() -> None:
    cluster, client = begun()
    first, second = client.produce("T"), client.produce("T")
    cluster.run(20)
    assert first.call.status == OK and second.call.status is None
    assert beat(client) == "OK"


def test_settings_can_be_sent_again_on_the_same_stream() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    stream.say(pb.TelemetryCommand(settings=stream.settings))
    cluster.until(lambda: len(stream.commands) == 2)
    assert stream.settings.publishing.max_body_size == 4 << 20 and stream.call.status is None


def test_a_stream_ends_when_its_client_ends_it() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    stream.end()
    cluster.until(lambda: stream.call.status is not None)
    assert stream.call.status == OK and not cluster.proxy.node.streams


def test_ended_streams_leave_nothing_behind() -> None:
    cluster, client = begun()
    for _ in range(5):
        client.produce("T")
        client.telemetry(pb.Settings())
        client.cancel(client.telemetry().call)
        client.grpc.start(f"/{NAME}/Telemetry", b"\xff", is_open=True)
    cluster.run(10_000)
    assert cluster.proxy.node.streams == 1


def test_client_whose_stream_ends_with_an_error_expires_as_others_do() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    client.grpc.send(stream.call, b"\xff")
    client.process.wake()
    cluster.until(lambda: stream.call.status is not None)
    cluster.run(EXPIRE_MS + 6_000)
    assert beat(client) == "UNRECOGNIZED_CLIENT_TYPE"


def test_heartbeats_of_unknown_clients_ask_for_settings() -> None:
    cluster, client = begun()
    assert beat(client) == "UNRECOGNIZED_CLIENT_TYPE"
    stream = client.produce("T")
    assert beat(client) == "OK"
    stream.end()
    cluster.run(EXPIRE_MS - 5_000)
    assert beat(client) == "OK"
    cluster.run(EXPIRE_MS + 6_000)
    assert beat(client) == "UNRECOGNIZED_CLIENT_TYPE"
    assert beat(cluster.client("")) == "CLIENT_ID_REQUIRED"


def test_a_client_that_ends_is_forgotten() -> None:
    _, client = begun()
    client.produce("T")
    assert terminate(client) == "OK"
    assert terminate(client) == beat(client) == "UNRECOGNIZED_CLIENT_TYPE"


def test_clients_beyond_the_maximum_are_refused_settings() -> None:
    cluster, client = begun(proxy={"clients_max": 1})
    client.produce("T")
    other = cluster.client("c-2")
    stream = other.produce("T")
    assert [code(command.status) for command in stream.commands] == ["TOO_MANY_REQUESTS"]
    assert code(other.send(message("T")).status) == "OK", "calls are served"
    terminate(client)
    assert code(other.produce("T").commands[0].status) == "OK"


def test_methods_that_do_not_exist_are_unimplemented() -> None:
    cluster, client = begun()
    for method in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "Nothing"):
        call = client.start(method, pb.HeartbeatRequest())
        cluster.until(lambda call=call: call.status is not None)  # type: ignore[misc]
        assert call.status == 12, method
    request = pb.SyncLiteSubscriptionRequest()
    response = client.call("SyncLiteSubscription", request, pb.SyncLiteSubscriptionResponse)
    assert code(response.status) == "UNSUPPORTED"


def test_requests_that_are_too_large_are_refused() -> None:
    _, client = begun()
    long = "x" * 70_000
    cases: list[tuple[str, pb.EndTransactionRequest | pb.RecallMessageRequest, type]] = [
        ("EndTransaction", pb.EndTransactionRequest(message_id=long), pb.EndTransactionResponse),
        ("RecallMessage", pb.RecallMessageRequest(recall_handle=long), pb.RecallMessageResponse),
    ]
    for method, request, kind in cases:
        assert code(client.call(method, request, kind).status) == "BAD_REQUEST"
    assert client.receive("G", "T", attempt_id=long).code == "BAD_REQUEST"
    assert client.receive("G", "T", expression=long).code == "BAD_REQUEST"


# A proxy that leaves.


def test_a_proxy_that_leaves_ends_streams_and_polls_and_answers_what_is_in_progress() -> None:
    cluster, client = begun()
    stream = client.produce("T")
    waiting = client.receiving("G", "T", poll_ms=20_000)
    cluster.run(1_000)
    cluster.proxy.leave()
    cluster.until(lambda: cluster.proxy.node.is_left, 200)
    cluster.run(50)
    assert client.grpc.goaway is not None and client.grpc.goaway[1] == 0
    assert stream.call.status == OK and waiting.call.status == OK
    assert waiting.code == "MESSAGE_NOT_FOUND" and waiting.kinds == ["status", "delivery_timestamp"]


def test_a_proxy_that_leaves_holds_no_more_polls_and_answers_other_calls() -> None:
    cluster, client = begun()
    cluster.proxy.leave()
    cluster.run(50)
    start_us = cluster.world.now_us
    assert client.receive("G", "T", poll_ms=20_000).code == "MESSAGE_NOT_FOUND"
    assert cluster.world.now_us - start_us < 500_000
    assert code(client.send(message("T")).status) == "OK"


def test_messages_for_a_poll_that_a_leaving_proxy_ended_come_to_others() -> None:
    cluster, client = begun(proxies=2)
    client.receiving("G", "T", poll_ms=20_000)
    cluster.run(1_000)
    cluster.proxy.leave()
    other = cluster.client("c-2", proxy=1)
    other.send(message("T", b"1"))
    assert other.receive("G", "T", poll_ms=5_000).bodies == [b"1"]


def closed(call: ClientCall) -> bool:
    return call.status is not None


@spec("X03")
def test_a_killed_proxy_leaves_its_polls_messages_to_others() -> None:
    cluster, client = begun(proxies=2)
    waiting = client.receiving("G", "T", poll_ms=20_000)
    cluster.run(1_000)
    cluster.proxy.kill()
    cluster.until(lambda: closed(waiting.call))
    other = cluster.client("c-2", proxy=1)
    other.send(message("T", b"1"))
    assert other.receive("G", "T", poll_ms=5_000).bodies == [b"1"]


def test_the_proxy_is_ready_once_a_name_server_responds() -> None:
    cluster, _ = begun()
    assert not cluster.proxy.node.not_ready(cluster.proxy.machine.now())


def test_settings_that_are_sent_faster_than_answered_end_the_stream() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    stream = client.telemetry()
    publishing = pb.Publishing(topics=[resource("T")])
    command = pb.TelemetryCommand(settings=pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing))
    for _ in range(3):
        stream.say(command)
    subscription = pb.Subscription(group=resource("G"), subscriptions=[pb.SubscriptionEntry(topic=resource("T"))])
    waiting = client.telemetry()
    for _ in range(3):
        waiting.say(pb.TelemetryCommand(settings=pb.Settings(subscription=subscription)))
    cluster.until(lambda: waiting.call.status is not None)
    assert waiting.call.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert stream.call.status is None and len(stream.commands) == 3, "settings of producers wait for nobody"


def test_a_stream_that_says_what_cannot_be_decoded_is_forgotten() -> None:
    cluster = ProxyCluster()
    client = cluster.client()
    call = client.start("Telemetry", is_open=True)
    client.grpc.send(call, b"\xff\xff\xff")
    client.process.wake()
    cluster.until(lambda: call.status is not None)
    assert cluster.proxy.node.streams == 0
