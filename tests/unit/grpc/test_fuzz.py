"""Random and mutated frames: a server ends the connection or goes on, raises nothing, and keeps nothing afterwards."""

from random import Random

import hpack
import pytest

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
from tandemq.grpc.server import CHECK_EVERY_MS, TAKE_MS_MAX, Call, GrpcServer, GrpcStatus, Method
from tests.spec import spec
from tests.unit.grpc.raw import frames_of, message_of

SEEDS = range(60)
FRAMES = 120
PATHS = ("/s/Echo", "/s/Later", "/s/Stream", "/s/None")


class Server:
    """A server with methods of every kind, and how often each call was reported."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.now = Now(1_000, 1_700_000_000_000)
        self.waiting: list[Call] = []
        self.cancels: dict[Call, int] = {}
        methods = {
            "/s/Echo": Method(lambda call, message, _now: call.respond(message * 3)),
            "/s/Later": Method(lambda call, _message, _now: self._wait(call)),
            "/s/Stream": Method(self._take, is_streamed=True, opened=lambda call, _now: self._wait(call)),
        }
        self.server = GrpcServer(methods, 2_000, 20_000, 30_000)
        self.sent: dict[int, bytes] = {}

    def _wait(self, call: Call) -> None:
        self.waiting.append(call)
        self.cancels[call] = 0
        call.on_cancel = lambda _now: self._note(call)
        call.on_end = lambda _now: call.end()

    def _note(self, call: Call) -> None:
        assert call.is_over
        self.cancels[call] += 1

    def _take(self, call: Call, message: bytes, _now: Now) -> None:
        call.send(message, message)

    def act(self) -> None:
        """Let a handler do something with a call that waits, or time pass."""
        action = self._random.randrange(5)
        if action == 0:
            self.now = Now(self.now.mono_ms + self._random.choice((1, CHECK_EVERY_MS, TAKE_MS_MAX)), 0)
            self.server.probe(self.now)
        elif self.waiting:
            call = self.waiting.pop(self._random.randrange(len(self.waiting)))
            if action == 1:
                call.respond(bytes(self._random.randrange(3_000)))
            elif action == 2:
                call.end(GrpcStatus.NOT_FOUND, "no")
            else:
                call.send(bytes(self._random.randrange(1_000)))
                self.waiting.append(call)

    def take_output(self) -> list[int]:
        """Keep what the server sends; return the connections that it closes."""
        sends, ended = self.server.take_output(self.now)
        for link, buffers in sends:
            self.sent[link] = self.sent.get(link, b"") + b"".join(buffers)
        return [link for link, _ in ended]


class Source:
    """Frames of a client that obeys, mostly."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._encoder = hpack.Encoder()
        self._next = 1

    def frames(self) -> bytes:
        """Return one or a few frames."""
        random, stream = self._random, self._random.randrange(1, self._next + 2) | 1
        if self._next == 1 or random.random() < 0.3:
            return self._request()
        size = random.choice((0, 1, 5, 100, 1_500, 70_000))
        return random.choice(
            (
                frame(
                    FrameType.DATA, random.randrange(2), stream, message_of(bytes(size % 3_000))[: random.randrange(9)]
                ),
                frame(FrameType.DATA, random.randrange(2), stream, message_of(bytes(size % 3_000))),
                frame(FrameType.DATA, Flag.PADDED, stream, bytes((size % 200,)) + bytes(size % 251)),
                reset_frame(stream, ErrorCode.CANCEL),
                window_update_frame(random.choice((0, stream)), size or 1),
                settings_frame({random.choice(list(Setting)): random.choice((0, 1, size, 20_000))}),
                frame(FrameType.PING, random.randrange(2), 0, bytes(8)),
                frame(FrameType.PRIORITY, 0, stream, bytes(5)),
                frame(
                    FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream, self._encoder.encode([("a", "b")])
                ),
                frame(random.choice(list(FrameType)), random.randrange(256), stream, random.randbytes(size % 20)),
            )
        )

    def _request(self) -> bytes:
        random = self._random
        headers = [(":method", "POST"), (":path", random.choice(PATHS)), ("content-type", "application/grpc")]
        optional = [("grpc-timeout", "5S"), ("x", random.randbytes(9).hex()), ("grpc-encoding", "gzip"), (":path", "")]
        block = self._encoder.encode(headers + [each for each in optional if random.random() < 0.2])
        stream, self._next = self._next, self._next + 2
        cut = random.randrange(len(block))
        end = random.choice((0, 0, Flag.END_STREAM))
        if random.random() < 0.8:
            request = frame(FrameType.HEADERS, Flag.END_HEADERS | end, stream, block)
        else:
            request = frame(FrameType.HEADERS, end, stream, block[:cut])
            request += frame(FrameType.CONTINUATION, Flag.END_HEADERS, stream, block[cut:])
        if not end and random.random() < 0.7:
            request += frame(FrameType.DATA, Flag.END_STREAM, stream, message_of(bytes(random.randrange(1_000))))
        return request


def _mutated(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(changed))
        action = random.randrange(3)
        if action == 0:
            changed[at] = random.randrange(256)
        elif action == 1:
            changed[at] ^= 1 << random.randrange(8)
        else:
            del changed[at]
        if not changed:
            break
    return bytes(changed)


@spec("X04")
@pytest.mark.parametrize("mutation", [0.0, 0.01, 0.2])
def test_any_frames_leave_the_server_in_order(mutation: float) -> None:
    ends = 0
    for seed in SEEDS:
        random = Random(f"{seed} {mutation}")
        served = Server(random)
        sources: dict[int, Source] = {}
        for link in range(FRAMES):
            if not sources or (link < 5 and random.random() < 0.5):
                sources[link] = Source(random)
                served.server.opened(link, "10.0.0.1:1", served.now)
                begin = settings_frame({Setting.INITIAL_WINDOW_SIZE: random.choice((0, 100, 65_535))})
                served.server.receive(link, PREFACE + begin, served.now)
            chosen, source = random.choice(list(sources.items()))
            data = source.frames()
            if random.random() < mutation:
                data = _mutated(random, data)
            cut = random.randrange(len(data) + 1)
            for piece in (data[:cut], data[cut:]):
                served.server.receive(chosen, piece, served.now)
            served.act()
            for gone in served.take_output():
                ends += 1
                del sources[gone]
                served.server.closed(gone, served.now)
        server = served.server
        assert sum(not call.is_over for call in served.waiting) <= server.open_calls, f"seed {seed}"
        counted = [each.connection.held_bytes for each in server._links.values()]
        assert server._held_bytes == sum(counted), f"seed {seed}"
        for link in list(sources):
            server.closed(link, served.now)
        served.take_output()
        assert (server._open_bytes, server._held_bytes, server.open_calls) == (0, 0, 0), f"seed {seed}"
        assert max(served.cancels.values(), default=0) <= 1, f"seed {seed}"
        for sent in served.sent.values():
            _check_output(sent)
    assert ends


def _check_output(sent: bytes) -> None:
    """Check the frames of each stream: after END_STREAM only RST_STREAM."""
    ended: set[int] = set()
    decoder = hpack.Decoder()
    for each in frames_of(sent):
        if each.kind is FrameType.HEADERS:
            decoder.decode(each.payload)
        if each.kind in (FrameType.HEADERS, FrameType.DATA):
            assert each.stream & 1 and each.stream not in ended
            if each.flags & Flag.END_STREAM:
                ended.add(each.stream)
        elif each.kind is FrameType.RST_STREAM:
            ended.add(each.stream)


@spec("X04")
def test_random_bytes_end_the_connection() -> None:
    for seed in range(300):
        random = Random(seed)
        served = Server(random)
        served.server.opened(1, "10.0.0.1:1", served.now)
        served.server.receive(1, PREFACE, served.now)
        for _ in range(20):
            served.server.receive(1, random.randbytes(random.randrange(200)), served.now)
        served.take_output()
        served.server.closed(1, served.now)
        assert served.server.connection_count == 0
