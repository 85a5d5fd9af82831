"""The slave's session, byte by byte, with a master that is simulated by the test."""

import random
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.ha import (
    HELLO_MARK,
    KIND_HEARTBEAT,
    KIND_OFFSETS,
    KIND_PROMISE,
    KIND_REPORT,
    KIND_TAIL,
    TRANSFER_BYTES,
    MasterHello,
    SlaveHello,
    checked,
    control_frame,
    encode_hello,
)
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.replication.slave import (
    CorruptRecordReceived,
    LogBegins,
    MasterHeartbeat,
    MasterHelloReceived,
    MasterPromise,
    MetadataReceived,
    RecordsReceived,
    SlaveSession,
    SlaveSessionClosed,
    SlaveSessionState,
)
from tests.spec import spec
from tests.unit.replication.logs import FakeLog, make_log

DEFAULTS = BrokerConfig()
SEGMENT = 4096
WHOLE = make_log([10, 500, 1500, 90, 3000, 1, 0, 700, 2000, 2000, 33], SEGMENT)


class Slave:
    """A session and the log of its owner."""

    def __init__(
        self, log: FakeLog | None = None, *, is_classic: bool = True, answer: MasterHello | None = None
    ) -> None:
        self.log = log if log is not None else FakeLog(segment_bytes=SEGMENT)
        hello = None if is_classic else SlaveHello("C", "b", 1, 7, 0, self.log.written_end, SEGMENT)
        self.session = SlaveSession(
            self.log,
            0,
            safe_end=self.log.written_end,
            hello=hello,
            heartbeat_ms=DEFAULTS.ha_heartbeat_ms,
            housekeeping_ms=DEFAULTS.ha_housekeeping_ms,
        )
        self.closed = ""
        self.damaged: list[CorruptRecordReceived] = []
        if not is_classic:
            self.greeting = self.sent()
            self.give(encode_hello(answer or MasterHello(0, start=self.log.written_end)))

    def give(self, data: bytes, now_ms: int = 0) -> None:
        self.session.receive_data(data, now_ms)
        while (event := self.session.next_event()) is not None:
            if isinstance(event, RecordsReceived):
                for piece in event.pieces:
                    self.log.data += piece.data
            elif isinstance(event, LogBegins):
                assert not self.log.data
                self.log.start = event.log_offset
            elif isinstance(event, MasterHelloReceived):
                self.session.proceed(event.hello, self.log.written_end)
            elif isinstance(event, CorruptRecordReceived):
                self.damaged.append(event)
            elif isinstance(event, SlaveSessionClosed):
                self.closed = event.reason
        self.session.stored(self.log.written_end, now_ms)

    def sent(self) -> bytes:
        return b"".join(self.session.data_to_send())

    def tick(self, now_ms: int, backlog: int = 0) -> bytes:
        self.session.tick(now_ms, backlog)
        while (event := self.session.next_event()) is not None:
            assert isinstance(event, SlaveSessionClosed)
            self.closed = event.reason
        return self.sent()


def frame(offset: int, body: bytes) -> bytes:
    return pack(">qi", offset, len(body)) + body


def stream_of(log: bytes, start: int = 0, batch: int = 1000) -> bytes:
    """Return the transfers of a log, split at file ends and every `batch` bytes."""
    out, at = b"", start
    while at < len(log):
        size = min(batch, SEGMENT - at % SEGMENT, len(log) - at)
        out += frame(at, log[at : at + size])
        at += size
    return out


# Reports.


@spec("H05", "H07")
@pytest.mark.parametrize("log_end", [0, 1, 123_456])
def test_first_bytes_on_the_wire_are_the_log_end(log_end: int) -> None:
    slave = Slave(FakeLog(b"x" * log_end))
    assert slave.sent() == pack(">q", log_end)
    assert slave.session.last_write_ms == 0


@spec("H08", "V01")
def test_idle_slave_reports_every_5s() -> None:
    assert DEFAULTS.ha_heartbeat_ms == 5_000
    slave = Slave(FakeLog(b"x" * 77))
    slave.sent()
    for second in (5, 10, 15):
        slave.give(frame(77, b""), second * 1_000 - 1)
        assert slave.session.deadline_ms() == second * 1_000
        assert slave.tick(second * 1_000 - 1) == b""
        assert slave.tick(second * 1_000) == pack(">q", 77)


@spec("H09", "T13")
def test_slave_reports_as_soon_as_records_are_stored() -> None:
    slave = Slave()
    slave.sent()
    first = make_log([100])
    slave.give(frame(0, first[:50]), 10)
    assert slave.sent() == b""
    slave.give(frame(50, first[50:]), 20)
    assert slave.sent() == pack(">q", len(first))


@spec("T13")
def test_records_are_reported_only_after_the_owner_stored_them() -> None:
    log = FakeLog(segment_bytes=SEGMENT)
    session = SlaveSession(log, 0, safe_end=0, hello=None, heartbeat_ms=5_000, housekeeping_ms=20_000)
    session.data_to_send()
    record = make_log([100])
    session.receive_data(frame(0, record), 1)
    assert session.data_to_send() == []
    session.tick(5_000)
    assert session.data_to_send() == [pack(">q", 0)]
    session.stored(len(record), 5_001)
    assert session.data_to_send() == [pack(">q", len(record))]


def test_later_lower_stored_offset_is_not_reported() -> None:
    slave = Slave(FakeLog(b"x" * 100))
    slave.sent()
    slave.session.stored(50, 1)
    assert slave.sent() == b""


@spec("T13")
def test_slave_that_syncs_never_reports_more_than_is_synced() -> None:
    """It has 100 bytes of which 60 are synced: the hello has the log end, the report the synced offset."""
    log = FakeLog(b"x" * 100)
    session = SlaveSession(
        log,
        0,
        safe_end=60,
        hello=SlaveHello("C", "b", 1, 7, 0, 100, 1 << 20),
        heartbeat_ms=5_000,
        housekeeping_ms=20_000,
    )
    session.data_to_send()
    session.receive_data(encode_hello(MasterHello(0, start=100)), 0)
    event = session.next_event()
    assert isinstance(event, MasterHelloReceived)
    session.proceed(event.hello, 60)
    assert session.data_to_send() == [checked(KIND_REPORT, pack(">q", 60))]
    session.tick(5_000)
    assert session.data_to_send() == [checked(KIND_REPORT, pack(">q", 60))]
    session.stored(100, 5_001)
    assert session.data_to_send() == [checked(KIND_REPORT, pack(">q", 100))]


# Silence.


@spec("H16", "G03")
def test_slave_closes_master_silent_for_20s_although_it_writes_itself() -> None:
    assert DEFAULTS.ha_housekeeping_ms == 20_000
    slave = Slave()
    for second in range(1, 21):
        slave.tick(second * 1_000)
        assert not slave.closed
    assert slave.session.deadline_ms() in (20_001, 25_000)
    slave.tick(20_001)
    assert "nothing from the master for 20001 ms" in slave.closed


@spec("H15", "G04")
def test_heartbeats_of_the_master_keep_the_session_open_and_store_nothing() -> None:
    slave = Slave(FakeLog(b"x" * 50))
    for second in range(5, 100, 5):
        slave.give(frame(50, b""), second * 1_000)
        slave.tick(second * 1_000)
    assert not slave.closed
    assert slave.log.written_end == 50


@spec("H10")
def test_slave_closes_if_the_master_reads_no_report_for_20s_but_sends_heartbeats() -> None:
    slave = Slave(FakeLog(b"x" * 50))
    for second in range(1, 191):
        slave.give(frame(50, b""), second * 1_000)
        slave.tick(second * 1_000, 8 * (second % 19))
        assert not slave.closed, "the backlog shrank from time to time"
    for second in range(191, 211):
        slave.give(frame(50, b""), second * 1_000)
        slave.tick(second * 1_000, 8 * (second - 190))
        assert not slave.closed
    assert slave.session.deadline_ms() == 210_001
    slave.tick(210_001, 160)
    assert slave.closed == "160 bytes wait, and the master has read none for 20001 ms"


@spec("T09")
def test_transfer_that_stays_incomplete_closes_although_heartbeats_arrive() -> None:
    slave = Slave(FakeLog(b"x" * 50))
    longer = bytearray(frame(50, b"y" * 100))
    longer[9] ^= 1  # the length field: 64 KiB more
    slave.give(bytes(longer), 1_000)
    for second in range(5, 25, 5):
        slave.give(frame(150, b""), second * 1_000)
        slave.tick(second * 1_000)
        assert not slave.closed
    assert slave.session.deadline_ms() == 21_001
    slave.tick(21_001)
    assert slave.closed == "a transfer is incomplete after 20001 ms: 65488 bytes are missing"


def test_slow_transfer_is_completed() -> None:
    slave = Slave()
    log = make_log([100] * 250)
    data = frame(0, log)
    for second in range(len(data) // 1_500 + 1):
        slave.give(data[second * 1_500 : (second + 1) * 1_500], second * 1_000)
        slave.tick(second * 1_000 + 999)
        due = slave.session.deadline_ms()
        assert due is not None and due > second * 1_000 + 999 and not slave.closed
    assert bytes(slave.log.data) == log


# Received bytes.


@spec("T11", "T05", "T07", "H21")
@given(st.lists(st.integers(1, 400), min_size=1, max_size=200), st.integers(1, 5000))
@settings(max_examples=60)
def test_stream_in_any_pieces_gives_the_same_log(cuts: list[int], batch: int) -> None:
    slave = Slave()
    stream, at = stream_of(WHOLE, batch=batch), 0
    for cut in cuts:
        slave.give(stream[at : at + cut])
        at += cut
    slave.give(stream[at:])
    assert not slave.closed
    assert bytes(slave.log.data) == WHOLE


@spec("T12")
def test_more_than_4_mib_in_random_pieces_stays_in_order() -> None:
    segment = 1 << 20
    whole = make_log([60_000] * 90, segment)
    assert len(whole) > 5 << 20
    slave = Slave(FakeLog(segment_bytes=segment))
    dice = random.Random(5)
    stream, at = b"", 0
    while at < len(whole):
        size = min(32_768, segment - at % segment, len(whole) - at)
        stream += frame(at, whole[at : at + size])
        at += size
    at = 0
    while at < len(stream):
        size = dice.choice((1, 11, 13, 5_000, 262_144))
        slave.give(stream[at : at + size])
        at += size
    assert bytes(slave.log.data) == whole


@spec("T05")
def test_message_of_100_kb_crosses_frames_and_is_stored() -> None:
    segment = 1 << 20
    whole = make_log([100_000], segment)
    slave = Slave(FakeLog(segment_bytes=segment))
    for at in range(0, len(whole), 32_768):
        assert slave.log.written_end == 0
        slave.give(frame(at, whole[at : at + 32_768]))
    assert bytes(slave.log.data) == whole


@spec("T10", "V05")
@pytest.mark.parametrize("distance", [-1, 1, 4096, 1 << 40])
def test_transfer_that_does_not_continue_the_log_closes_and_stores_nothing(distance: int) -> None:
    first = make_log([100])
    slave = Slave(FakeLog(first, segment_bytes=SEGMENT))
    slave.give(frame(len(first) + distance, make_log([10])))
    assert "is expected" in slave.closed
    assert bytes(slave.log.data) == first
    assert slave.sent()[8:] == b""


@spec("T10")
def test_heartbeat_with_another_offset_closes_too() -> None:
    slave = Slave(FakeLog(make_log([100]), segment_bytes=SEGMENT))
    slave.give(frame(7, b""))
    assert "is expected" in slave.closed


@spec("T10", "H21")
def test_gap_is_detected_before_the_body_arrives() -> None:
    slave = Slave(FakeLog(make_log([100]), segment_bytes=SEGMENT))
    slave.give(pack(">qi", 1, 1000) + b"x" * 1000)
    assert slave.closed


@spec("T03")
def test_empty_slave_begins_at_the_file_the_master_sends() -> None:
    slave = Slave()
    second = make_log([100, 200], SEGMENT)
    body = make_log([3000, 3000], SEGMENT)[SEGMENT:]
    slave.give(frame(SEGMENT, body))
    assert not slave.closed
    assert slave.log.start == SEGMENT
    assert bytes(slave.log.data) == body
    assert second


@spec("T03")
def test_empty_slave_refuses_to_begin_within_a_file() -> None:
    slave = Slave()
    slave.give(frame(SEGMENT + 5, b"x"))
    assert "not a file's start" in slave.closed
    assert slave.log.written_end == 0


@spec("T18", "V07")
@pytest.mark.parametrize("size", [-1, -(1 << 31), (64 << 20) + 1, (1 << 31) - 1])
def test_transfer_of_invalid_size_closes(size: int) -> None:
    for is_classic in (True, False):
        slave = Slave(is_classic=is_classic)
        slave.give(pack(">qi", 0, size))
        assert "transfer of" in slave.closed


@spec("T18")
def test_garbage_from_a_master_closes_and_is_not_buffered() -> None:
    dice = random.Random(9)
    for _ in range(200):
        slave = Slave()
        for _ in range(20):
            slave.give(dice.randbytes(dice.randrange(1, 100)))
        assert slave.log.written_end == 0
        assert slave.session._in_bytes < 1 << 20  # limit of bytes buffered for unauthenticated peers


@spec("T09")
def test_every_flipped_bit_of_a_record_is_detected_before_it_is_stored() -> None:
    whole = make_log([40, 40])
    half = len(make_log([40]))
    for bit in range(half * 8, len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        slave = Slave()
        slave.give(frame(0, bytes(damaged)))
        assert bytes(slave.log.data) == whole[:half], f"bit {bit}"
        assert slave.damaged[0].log_offset == half, f"bit {bit}"
        assert "damaged" in slave.closed, f"bit {bit}"


@spec("T18")
@pytest.mark.parametrize(
    "frame",
    [
        control_frame(KIND_HEARTBEAT, pack(">qqiqq", 7, 3, 5_000, 900, 900)),
        control_frame(KIND_PROMISE, pack(">qq", 900, 3)),
        control_frame(KIND_OFFSETS, b'{"offsetTable":{"T@g":{"0":1}}}'),
    ],
    ids=["heartbeat", "promise", "offsets"],
)
def test_every_flipped_bit_of_a_masters_frames_is_detected(frame: bytes) -> None:
    for bit in range(TRANSFER_BYTES * 8, len(frame) * 8):
        session = Slave(is_classic=False).session
        turned = bytearray(frame)
        turned[bit // 8] ^= 1 << bit % 8
        session.receive_data(bytes(turned), 0)
        event = session.next_event()
        assert isinstance(event, SlaveSessionClosed), f"bit {bit}"
        assert "checksum" in event.reason
    whole = Slave(is_classic=False).session
    whole.receive_data(frame, 0)
    assert isinstance(whole.next_event(), MasterHeartbeat | MasterPromise | MetadataReceived)


@spec("T09", "V13")
def test_blank_at_a_files_end_is_stored_with_the_records() -> None:
    slave = Slave()
    slave.give(stream_of(make_log([3000, 3000], SEGMENT)))
    assert bytes(slave.log.data) == make_log([3000, 3000], SEGMENT)


@spec("T09")
def test_blank_of_another_length_than_the_rest_of_the_file_is_damage() -> None:
    whole = bytearray(make_log([3000, 3000], SEGMENT))
    at = len(make_log([3000], SEGMENT))
    whole[at : at + 4] = (SEGMENT - at - 8).to_bytes(4)
    slave = Slave()
    slave.give(stream_of(bytes(whole)))
    assert slave.damaged[0].log_offset == at


# Hellos.


def test_slave_sends_its_hello_and_reports_after_the_answer() -> None:
    slave = Slave(FakeLog(make_log([10]), segment_bytes=SEGMENT), is_classic=False)
    assert slave.greeting.startswith(HELLO_MARK)
    assert slave.sent() == checked(KIND_REPORT, pack(">q", slave.log.written_end))
    assert slave.session.state is SlaveSessionState.TRANSFER


def test_answer_and_first_transfer_may_arrive_in_any_pieces() -> None:
    whole = make_log([100, 200])
    raw = encode_hello(MasterHello(0)) + frame(0, whole)
    for cut in range(1, len(raw)):
        log = FakeLog(segment_bytes=SEGMENT)
        slave = Slave.__new__(Slave)
        slave.log, slave.closed, slave.damaged = log, "", []
        hello = SlaveHello("C", "b", 1, 7, 0, 0, SEGMENT)
        slave.session = SlaveSession(log, 0, safe_end=0, hello=hello, heartbeat_ms=5_000, housekeeping_ms=20_000)
        slave.give(raw[:cut])
        slave.give(raw[cut:])
        assert bytes(log.data) == whole, cut


def test_master_that_refuses_is_closed_with_its_reason() -> None:
    slave = Slave(is_classic=False, answer=MasterHello(0, refused="no room"))
    assert "no room" in slave.closed


def test_master_with_the_classic_protocol_is_closed_with_a_hint() -> None:
    slave = Slave(is_classic=False)
    fresh = SlaveSession(
        slave.log,
        0,
        safe_end=0,
        hello=SlaveHello("C", "b", 1, 7, 0, 0, SEGMENT),
        heartbeat_ms=5_000,
        housekeeping_ms=20_000,
    )
    fresh.receive_data(pack(">qi", 0, 0), 0)
    event = fresh.next_event()
    assert isinstance(event, SlaveSessionClosed)
    assert "haProtocol" in event.reason


def test_master_that_does_not_answer_the_hello_is_closed_after_20s() -> None:
    session = SlaveSession(
        FakeLog(),
        0,
        safe_end=0,
        hello=SlaveHello("C", "b", 1, 7, 0, 0, SEGMENT),
        heartbeat_ms=5_000,
        housekeeping_ms=20_000,
    )
    session.data_to_send()
    session.tick(5_000)
    assert session.data_to_send() == []
    assert session.deadline_ms() == 20_001
    session.tick(20_001)
    assert isinstance(session.next_event(), SlaveSessionClosed)


def test_slave_sends_the_tail_the_master_lost_and_then_reports() -> None:
    whole = make_log([100] * 6, SEGMENT)
    slave = Slave(
        FakeLog(whole, segment_bytes=SEGMENT), is_classic=False, answer=MasterHello(0, start=462, send_tail=True)
    )
    tail = checked(KIND_TAIL, pack(">qi", 462, len(whole) - 462)) + whole[462:]
    assert slave.sent() == tail + checked(KIND_REPORT, pack(">q", len(whole)))


def test_tail_that_cannot_be_read_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(offset: int, size: int) -> bytes:
        raise DiskFailed(f"no bytes at {offset}: {size} were asked for")

    log = FakeLog(make_log([100] * 6, SEGMENT), segment_bytes=SEGMENT)
    monkeypatch.setattr(log, "read", fail)
    slave = Slave(log, is_classic=False, answer=MasterHello(0, start=462, send_tail=True))
    assert "cannot be read" in slave.closed
    assert slave.sent() == b"", "a report would mark the tail as complete"


# Closed sessions.


@spec("H21")
def test_closed_session_ignores_received_bytes() -> None:
    slave = Slave()
    slave.give(frame(5, b""))
    assert slave.closed
    slave.give(frame(0, make_log([10])))
    assert slave.log.written_end == 0
    assert slave.session.deadline_ms() is None
