"""What clients may cost a server: memory of open calls and of answers that are not taken, time of one message."""

import gzip
import tracemalloc

import pytest

from lab.grpc_client import ClientCall, GrpcClient
from tandemq.boundary import Now
from tandemq.codec.http2.frames import (
    PREFACE,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
    frame,
    reset_frame,
    settings_frame,
    window_update_frame,
)
from tandemq.grpc.server import (
    CHECK_EVERY_MS,
    HELD_BYTES_MAX,
    TAKE_MS_MAX,
    Call,
    GrpcServer,
    GrpcStatus,
    Method,
)
from tests.spec import spec
from tests.unit.grpc.peer import LINK, Joined
from tests.unit.grpc.raw import block_of, message_of, request, steps_of

LATER, LARGE, STREAM = "/s/Later", "/s/Large", "/s/Stream"


class Handlers:
    """Methods that wait, answer with as many bytes as they are asked for, and take streams."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []
        self.cancelled: list[bytes] = []
        self.taken: list[bytes] = []
        self.methods = {
            LATER: Method(self.later),
            LARGE: Method(self.large),
            STREAM: Method(self.take, is_streamed=True, opened=self.opened),
        }

    def later(self, call: Call, message: bytes, _now: Now) -> None:
        self.waiting.append(call)
        call.on_cancel = lambda _now: self.cancelled.append(message)

    def large(self, call: Call, message: bytes, _now: Now) -> None:
        call.respond(bytes(int(message)))

    def opened(self, call: Call, _now: Now) -> None:
        self.waiting.append(call)
        call.on_cancel = lambda _now: self.cancelled.append(b"stream")

    def take(self, _call: Call, message: bytes, _now: Now) -> None:
        self.taken.append(message)


class Crowd:
    """Clients on connections of their own to one server."""

    def __init__(self, handlers: Handlers, count: int, *, open_max: int = 1 << 22, held_max: int = 1 << 22) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        self.server = GrpcServer(handlers.methods, 1 << 20, open_max, held_max)
        self.clients = {link: GrpcClient() for link in range(1, count + 1)}
        self.closed: dict[int, str] = {}
        for link in self.clients:
            self.server.opened(link, f"10.0.0.{link}:4000", self.now)
        self.settle()

    def settle(self) -> None:
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for link, client in self.clients.items():
                if up := client.take_output():
                    is_quiet = False
                    self.server.receive(link, up, self.now)
            sends, ended = self.server.take_output(self.now)
            for link, buffers in sends:
                self.clients[link].receive(b"".join(buffers))
            self.closed |= dict(ended)

    def begin(self, link: int, size: int, path: str = LATER) -> ClientCall:
        """Send part of a request."""
        client = self.clients[link]
        call = client.start(path, is_open=True)
        part = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(size)
        for at in range(0, len(part), 16_384):
            client.out.append(frame(FrameType.DATA, 0, call.stream, part[at : at + 16_384]))
        return call

    def is_empty(self) -> bool:
        for link in list(self.clients):
            self.server.closed(link, self.now)
        return self.server._open_bytes == self.server._held_bytes == self.server.open_calls == 0


# Open calls.


@spec("X04")
def test_unfinished_requests_of_some_clients_do_not_keep_others_from_sending() -> None:
    crowd = Crowd(Handlers(), 20, open_max=1_000_000)
    for link in range(1, 20):
        crowd.begin(link, 50_000 + 100 * link)
    crowd.settle()
    assert crowd.closed == {}
    victim = crowd.begin(20, 30_000)
    crowd.settle()
    assert list(crowd.closed) == [19] and "the most" in crowd.closed[19]
    goaway = crowd.clients[19].goaway
    assert goaway is not None and goaway[1] == ErrorCode.ENHANCE_YOUR_CALM
    assert victim.status is None
    assert crowd.is_empty()


def test_a_client_with_a_large_share_is_refused_more_and_keeps_its_connection() -> None:
    crowd = Crowd(Handlers(), 2, open_max=1_000_000)
    first, second = crowd.begin(1, 300_000), crowd.begin(2, 600_000)
    crowd.settle()
    third = crowd.begin(1, 200_000)
    crowd.settle()
    assert third.status == GrpcStatus.RESOURCE_EXHAUSTED
    assert first.status is second.status is None and crowd.closed == {}
    assert crowd.is_empty()


def test_headers_of_waiting_calls_count() -> None:
    handlers = Handlers()
    crowd = Crowd(handlers, 2, open_max=200_000)
    large = {"x": "y" * 10_000}
    calls = [crowd.clients[1].start(LATER, b"", metadata=large) for _ in range(30)]
    crowd.settle()
    assert [call.status for call in calls].count(GrpcStatus.RESOURCE_EXHAUSTED) == 30 - 17
    other = crowd.clients[2].start(LATER, b"")
    crowd.settle()
    assert other.status is None and len(handlers.waiting) == 18
    assert crowd.is_empty() and len(handlers.cancelled) == 17 + 1


def test_a_connection_that_is_closed_within_its_bytes_begins_no_calls() -> None:
    handlers = Handlers()
    crowd = Crowd(handlers, 12, open_max=1_000_000)
    for link in range(1, 11):
        crowd.begin(link, 89_000)
    crowd.settle()
    crowd.begin(12, 115_000)
    for _ in range(3):
        crowd.clients[12].start(LATER, b"x")
    crowd.settle()
    assert list(crowd.closed) == [12] and handlers.waiting == []
    assert crowd.server.connection_count == 11 and crowd.is_empty()


def test_a_request_in_tiny_pieces_takes_no_more_memory_than_it_counts() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=1 << 20)
    joined.raw(request(1, LATER) + frame(FrameType.DATA, 0, 1, b"\0" + (1 << 20).to_bytes(4, "big")))
    pieces = [frame(FrameType.DATA, 0, 1, b"ab")] * 10_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for piece in pieces:
        joined.server.receive(LINK, piece, joined.now)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < 2 * 20_000 + 10_000


@pytest.mark.parametrize("path", [LATER, STREAM])
def test_a_piece_of_a_request_costs_the_same_however_much_is_there(path: str) -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods, message_bytes_max=1 << 20)
    size = 600_000
    joined.raw(request(1, path) + frame(FrameType.DATA, 0, 1, b"\0" + size.to_bytes(4, "big")))
    piece = frame(FrameType.DATA, 0, 1, bytes(1_000))
    steps = [steps_of(lambda: joined.server.receive(LINK, piece, joined.now)) for _ in range(599)]
    assert max(steps) < 2 * min(steps), "some send a window update"
    call = joined.server._links[LINK].calls[1]
    assert isinstance(call._data, bytearray), "the pieces are not joined anew with each of them"
    joined.server.receive(LINK, frame(FrameType.DATA, 0, 1, bytes(1_000) + message_of(b"next")), joined.now)
    assert handlers.taken == ([bytes(size), b"next"] if path == STREAM else [])


def test_handlers_are_notified_of_streams_whose_requests_are_refused() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods, message_bytes_max=1_000)
    too_long = joined.call(STREAM, b"x" * 1_001, is_open=True)
    assert too_long.status == GrpcStatus.RESOURCE_EXHAUSTED and handlers.cancelled == [b"stream"]
    broken = joined.client.start(STREAM, is_open=True, metadata={"grpc-encoding": "gzip"})
    joined.client.out.append(frame(FrameType.DATA, 0, broken.stream, b"\1\0\0\0\3abc"))
    joined.settle()
    assert broken.status == GrpcStatus.INTERNAL and handlers.cancelled == [b"stream"] * 2


def test_compressed_messages_may_have_the_size_that_others_may_have() -> None:
    joined = Joined(Handlers().methods, message_bytes_max=10_000)
    packed = {size: gzip.compress(b"y" * size) for size in (9_999, 10_000, 10_001, 1_000_000)}
    outcomes = []
    for data in (*packed.values(), packed[10_000][:-1], packed[10_000][:-9], b""):
        call = joined.client.start(LATER, is_open=True, metadata={"grpc-encoding": "gzip"})
        body = b"\1" + len(data).to_bytes(4, "big") + data
        joined.client.out.append(frame(FrameType.DATA, Flag.END_STREAM, call.stream, body))
        joined.settle()
        outcomes.append(call.status)
    assert outcomes == [None, None, *[GrpcStatus.RESOURCE_EXHAUSTED] * 2, *[GrpcStatus.INTERNAL] * 3]


# Answers that are not taken.


@spec("X04")
def test_answers_that_clients_leave_are_bounded_over_all_connections() -> None:
    handlers = Handlers()
    server = GrpcServer(handlers.methods, 1 << 20, 1 << 22, 1_000_000)
    now = Now(1_000, 0)
    ends = []
    for link in range(1, 21):
        server.opened(link, "10.0.0.1:1", now)
        ask = frame(FrameType.DATA, Flag.END_STREAM, 1, message_of(b"%d" % (70_000 + link)))
        server.receive(link, PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1, LARGE) + ask, now)
        ends += server.take_output(now)[1]
        assert server._held_bytes <= 1_000_000
    assert [link for link, _ in ends] == [14 + number for number in range(1, 7)], "the largest, which are the latest"
    assert server.connection_count == 14
    server.receive(1, settings_frame({Setting.INITIAL_WINDOW_SIZE: 60_000}), now)
    server.take_output(now)
    server.receive(2, reset_frame(1, ErrorCode.CANCEL), now)
    server.take_output(now)
    for link in range(3, 15):
        server.closed(link, now)
    assert server._held_bytes == 70_001 + 5 - 60_000
    server.closed(1, now)
    assert server._held_bytes == 0


def test_a_client_that_leaves_too_much_loses_its_connection_only() -> None:
    handlers = Handlers()
    server = GrpcServer(handlers.methods, 1 << 20, 1 << 22, 2 * HELD_BYTES_MAX)
    now = Now(1_000, 0)
    for link in (1, 2):
        server.opened(link, "10.0.0.1:1", now)
        server.receive(link, PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}), now)
    half = frame(FrameType.DATA, Flag.END_STREAM, 1, message_of(b"%d" % (HELD_BYTES_MAX // 2)))
    other = half[:5] + (3).to_bytes(4, "big") + half[9:]
    server.receive(1, request(1, LARGE) + half, now)
    server.receive(2, request(1, LARGE) + half, now)
    assert server.take_output(now)[1] == []
    server.receive(1, request(3, LARGE) + other, now)
    ended = server.take_output(now)[1]
    assert [link for link, _ in ended] == [1] and server.connection_count == 1


def test_a_busy_client_keeps_answers_that_it_takes_in_time() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods, window=0)
    joined.raw(window_update_frame(0, 1 << 20))
    calls = []
    for number in range(2 * TAKE_MS_MAX // CHECK_EVERY_MS):  # at any time five answers wait for their windows
        calls.append(joined.call(LATER, b"%d" % number))
        handlers.waiting[-1].respond(bytes(100))
        if number >= 5:
            joined.client.out.append(window_update_frame(calls[number - 5].stream, 200))
        joined.settle()
        joined.pass_ms(CHECK_EVERY_MS)
    assert handlers.cancelled == []
    assert [call.status for call in calls] == [GrpcStatus.OK] * (len(calls) - 5) + [None] * 5


def test_an_answer_taken_just_before_the_connection_is_lost_is_not_reported() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods, window=0)
    joined.raw(window_update_frame(0, 1 << 20))
    taken, left = joined.call(LATER, b"taken"), joined.call(LATER, b"left")
    for call in handlers.waiting:
        call.respond(bytes(100))
    joined.settle()
    joined.raw(window_update_frame(taken.stream, 200))
    joined.pass_ms(CHECK_EVERY_MS)
    joined.server.probe(joined.now)
    joined.settle()
    joined.server.closed(LINK, joined.now)
    assert handlers.cancelled == [b"left"] and taken.status == GrpcStatus.OK and left.status is None


def test_answers_without_a_waiting_handler_are_given_up_too() -> None:
    joined = Joined(Handlers().methods, window=10)
    joined.call(LARGE, b"1000")
    for _ in range(3):
        joined.pass_ms(TAKE_MS_MAX)
        joined.server.probe(joined.now)
        joined.server.take_output(joined.now)
        joined.raw(frame(FrameType.PING, 0, 0, bytes(8)))
    connection = joined.server._links[LINK].connection
    assert connection.held_bytes == 0 and connection.stream_count == 0


# Form.


def test_content_types_of_grpc_only_are_served() -> None:
    outcomes = {}
    for kind in (
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;charset=utf-8",
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/json",
    ):
        joined = Joined(Handlers().methods)
        call = joined.call(LARGE, b"1", metadata={"content-type": kind})
        outcomes[kind] = call.headers[":status"]
    assert list(outcomes.values()) == ["200", "200", "200", "415", "415", "415"]


def test_times_are_read_in_all_units() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    wanted = {"1H": 3_600_000, "2M": 120_000, "99999999S": 99_999_999_000, "5m": 5, "2500u": 2, "1n": 0, "0m": 0}
    for text, ms in wanted.items():
        joined.call(LATER, b"", metadata={"grpc-timeout": text})
        assert handlers.waiting[-1].deadline_ms == joined.now.mono_ms + ms, text
    for text in ("", "S", "5", "5s", "-1S", "1.5S", "123456789S", "\xb2S", "1 S"):
        assert joined.call(LATER, b"", metadata={"grpc-timeout": text}).status == GrpcStatus.INTERNAL, text


def test_texts_of_errors_pass_percent_encoded_and_short_enough_for_headers_of_8_kib() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    sent = {
        "100 % \n\x7f": "100 %25 %0A%7F",
        "ü€": "%C3%BC%E2%82%AC",
        "\ud800": "?",
        "😀" * 9_000: "%F0%9F%98%80" * 600,
    }
    for text, encoded in sent.items():
        call = joined.call(LATER, b"")
        handlers.waiting[-1].end(GrpcStatus.NOT_FOUND, text)
        joined.settle()
        assert call.text == encoded and len(call.text) < 8_000


def test_a_response_before_the_end_of_a_request_is_whole() -> None:
    handlers = Handlers()
    joined = Joined(handlers.methods)
    block = block_of(STREAM)
    joined.raw(frame(FrameType.HEADERS, Flag.END_HEADERS, 1, block) + frame(FrameType.DATA, 0, 1, message_of(b"a")))
    handlers.waiting[0].send(b"x")
    handlers.waiting[0].end()
    assert not joined.server._links[LINK].connection.is_open(1)
    joined.raw(frame(FrameType.DATA, 0, 1, message_of(b"b")) + frame(FrameType.DATA, Flag.END_STREAM, 1))
    joined.raw(reset_frame(1, ErrorCode.CANCEL) + window_update_frame(1, 100))
    assert handlers.taken == [b"a"] and joined.closed is None and handlers.cancelled == []
