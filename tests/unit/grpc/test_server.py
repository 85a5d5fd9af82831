"""Calls on a connection: responses, streams, limits, clients that give up."""

import gzip

from lab.grpc_client import GrpcClient
from tandemq.boundary import Now
from tandemq.codec.http2.frames import Flag, FrameType, frame, window_update_frame
from tandemq.grpc.connection import HEADER_BYTES_MAX, STREAMS_MAX
from tandemq.grpc.server import TAKE_MS_MAX, Call, GrpcStatus, Method
from tests.unit.grpc.peer import LINK, Joined

ECHO, LATER, STREAM = "/s/Echo", "/s/Later", "/s/Stream"


class Handlers:
    """Methods that record their calls."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []
        self.cancelled: list[str] = []
        self.said: list[bytes] = []
        self.methods = {
            ECHO: Method(self.echo),
            LATER: Method(self.later),
            STREAM: Method(self.take, is_streamed=True, opened=self.opened),
        }

    def echo(self, call: Call, message: bytes, _now: Now) -> None:
        call.respond(message)

    def later(self, call: Call, message: bytes, _now: Now) -> None:
        self.waiting.append(call)
        call.on_cancel = lambda _now: self.cancelled.append(message.decode())

    def opened(self, call: Call, _now: Now) -> None:
        self.waiting.append(call)
        call.on_end = lambda _now: call.end()

    def take(self, call: Call, message: bytes, _now: Now) -> None:
        self.said.append(message)
        call.send(b"got " + message)


def test_a_call_gets_its_response() -> None:
    joined = Joined(Handlers().methods)
    call = joined.call(ECHO, b"hello")
    assert call.messages == [b"hello"] and call.status == GrpcStatus.OK
    assert call.headers["content-type"] == "application/grpc"
    assert joined.call(ECHO, b"").messages == [b""]


def test_large_messages_pass_in_both_directions() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=3 << 20)
    message = bytes(range(256)) * 8192
    call = joined.call(ECHO, message)
    assert call.messages == [message] and call.status == GrpcStatus.OK


def test_a_client_with_a_small_window_gets_all() -> None:
    joined = Joined(Handlers().methods, window=100)
    joined.client.settings.clear()
    call = joined.call(ECHO, b"x" * 1000)
    assert call.status is None
    for _ in range(20):
        joined.client.out += [window_update_frame(0, 100), window_update_frame(call.stream, 100)]
        joined.settle()
    assert call.messages == [b"x" * 1000] and call.status == GrpcStatus.OK


def test_streams_carry_messages_until_the_client_ends_them() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    call = joined.call(STREAM, b"one", is_open=True)
    joined.client.send(call, b"two", b"three")
    joined.settle()
    assert call.messages == [b"got one", b"got two", b"got three"] and call.status is None
    joined.client.send(call, is_end=True)
    joined.settle()
    assert call.status == GrpcStatus.OK


def test_unknown_methods_are_unimplemented() -> None:
    call = Joined(Handlers().methods).call("/s/None", b"x")
    assert call.status == GrpcStatus.UNIMPLEMENTED and "/s/None" in call.text


def test_too_large_messages_are_refused_before_they_are_there() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=1000)
    call = joined.client.start(ECHO, is_open=True)
    joined.client.send(call, b"x" * 2000)
    joined.settle()
    assert call.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert joined.call(ECHO, b"fits").messages == [b"fits"]


def test_the_memory_of_unfinished_requests_is_bounded_over_all_connections() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=1 << 20, unfinished_bytes_max=100_000)
    calls = []
    for _ in range(10):
        call = joined.client.start(ECHO, is_open=True)
        joined.client.send(call, b"x" * 15_000)
        calls.append(call)
    joined.settle()
    assert [call.status for call in calls].count(GrpcStatus.RESOURCE_EXHAUSTED) == 4
    for call in calls:
        joined.client.cancel(call)
    joined.settle()
    assert joined.call(ECHO, b"x" * 90_000).status == GrpcStatus.OK


def test_compressed_messages_are_inflated_within_limits() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=10_000)
    for body, status in ((b"y" * 9_000, GrpcStatus.OK), (b"y" * 11_000, GrpcStatus.RESOURCE_EXHAUSTED)):
        packed = gzip.compress(body)
        call = joined.client.start(ECHO, is_open=True, metadata={"grpc-encoding": "gzip"})

        data = b"\x01" + len(packed).to_bytes(4, "big") + packed
        joined.client.out.append(frame(FrameType.DATA, Flag.END_STREAM, call.stream, data))
        joined.settle()
        assert call.status == status


def test_a_cancelled_call_and_a_lost_connection_are_reported_once() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    first, second = joined.call(LATER, b"a"), joined.call(LATER, b"b")
    joined.client.cancel(first)
    joined.settle()
    assert handlers.cancelled == ["a"]
    joined.server.closed(LINK, joined.now)
    assert handlers.cancelled == ["a", "b"] and second.status is None
    for call in handlers.waiting:
        call.respond(b"too late")
    assert joined.server.open_calls == 0


def test_an_answer_that_is_not_taken_is_reported() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods, window=10)
    joined.call(LATER, b"a")
    handlers.waiting[0].respond(b"x" * 1000)
    joined.settle()
    joined.pass_ms(TAKE_MS_MAX // 2)
    joined.server.probe(joined.now)
    joined.settle()
    assert handlers.cancelled == []
    joined.pass_ms(TAKE_MS_MAX)
    joined.server.probe(joined.now)
    joined.settle()
    assert handlers.cancelled == ["a"]


def test_an_answer_that_is_lost_with_its_connection_is_reported() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    joined.call(LATER, b"a")
    handlers.waiting[0].respond(b"x")
    sends, _ = joined.server.take_output(joined.now)
    assert sends and handlers.cancelled == []
    joined.server.closed(LINK, joined.now)
    assert handlers.cancelled == ["a"], "the bytes were sent, and did not arrive"


def test_an_answer_that_a_client_has_received_is_not_reported() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    calls = [joined.call(LATER, name) for name in (b"a", b"b")]
    for waiting in handlers.waiting:
        waiting.respond(b"x")
    joined.settle()
    assert [call.messages for call in calls] == [[b"x"], [b"x"]] and joined.client.pings == 1
    joined.server.closed(LINK, joined.now)
    assert handlers.cancelled == []


def test_each_answer_has_its_own_time_to_be_taken() -> None:
    """A busy connection always has answers that are not taken yet."""
    handlers = Handlers()
    joined = Joined(handlers.methods, window=10)
    calls = []
    for number in range(6):
        calls.append(joined.call(LATER, b"%d" % number))
        handlers.waiting[-1].respond(b"x" * 100)
        joined.settle()
        joined.pass_ms(TAKE_MS_MAX // 3)
        if number:
            joined.client.out += [window_update_frame(0, 1_000), window_update_frame(calls[-2].stream, 1_000)]
            joined.settle()
    assert handlers.cancelled == [] and [len(call.messages) for call in calls] == [1] * 5 + [0]


def test_more_streams_than_allowed_are_refused() -> None:
    joined = Joined(Handlers().methods)
    calls = [joined.client.start(LATER, b"a") for _ in range(STREAMS_MAX + 5)]
    joined.settle()
    assert [call.status for call in calls].count(None) == STREAMS_MAX
    assert joined.closed is None


def test_too_many_headers_end_the_connection() -> None:
    joined = Joined(Handlers().methods)
    joined.call(ECHO, b"x", metadata={"a": "b" * HEADER_BYTES_MAX})
    assert joined.closed is not None and joined.client.goaway is not None


def test_what_is_not_http2_is_refused() -> None:
    joined = Joined(Handlers().methods)
    joined.client = GrpcClient()
    joined.client.out = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
    joined.settle()
    assert joined.closed is not None and "preface" in joined.closed


def test_bytes_may_arrive_one_by_one() -> None:
    joined = Joined(Handlers().methods)
    call = joined.client.start(ECHO, b"hello")
    for byte in joined.client.take_output():
        joined.server.receive(LINK, bytes((byte,)), joined.now)
    joined.settle()
    assert call.messages == [b"hello"] and call.status == GrpcStatus.OK


def test_a_silent_client_is_asked_and_then_closed() -> None:
    joined = Joined(Handlers().methods)
    joined.call(ECHO, b"x")
    joined.pass_ms(61_000)
    joined.server.probe(joined.now)
    joined.settle()
    assert joined.client.pings == 1
    joined.pass_ms(30_000)
    joined.server.probe(joined.now)
    assert joined.closed is None, "it has answered the ping"
    joined.pass_ms(61_000)
    joined.server.probe(joined.now)
    joined.server.take_output(joined.now)
    joined.pass_ms(30_000)
    joined.server.probe(joined.now)
    joined.settle()
    assert joined.closed is not None and "nothing for" in joined.closed


def test_leaving_lets_calls_finish() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    waiting = joined.call(LATER, b"a")
    joined.server.leave()
    joined.settle()
    assert joined.client.goaway is not None and joined.client.goaway[1] == 0
    assert joined.call(ECHO, b"still").status == GrpcStatus.OK
    handlers.waiting[0].respond(b"done")
    joined.settle()
    assert waiting.messages == [b"done"]
    joined.server.close(joined.now)
    joined.settle()
    assert joined.closed == "the server stops"
