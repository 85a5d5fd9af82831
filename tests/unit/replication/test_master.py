"""The master's session with one slave, byte by byte: first classic slaves, then those that send a hello."""

import random
from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sim.world.disk import SimDisk
from tandemq.codec.ha import (
    HELLO_MARK,
    KIND_HEARTBEAT,
    KIND_PROMISE,
    KIND_REPORT,
    KIND_SAVED,
    KIND_TAIL,
    MasterHello,
    SlaveHello,
    checked,
    encode_hello,
)
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.not_cached import FileRange
from tandemq.replication.master import (
    READ_BYTES,
    LogNotCached,
    MasterSession,
    MasterSessionClosed,
    MasterSessionState,
    MasterSettings,
    SlaveAcked,
    SlaveHelloReceived,
    TailComplete,
    TailReceived,
)
from tests.spec import spec
from tests.unit.replication.logs import FakeLog, make_log

DEFAULTS = BrokerConfig()


def open_session(log: FakeLog, *, is_classic: bool = True, batch: int = 32_768, rate: int = 0) -> MasterSession:
    settings = MasterSettings(DEFAULTS.ha_heartbeat_ms, DEFAULTS.ha_housekeeping_ms, batch, rate)
    return MasterSession(log, 0, settings, is_classic_admitted=is_classic)


def report(offset: int) -> bytes:
    return pack(">q", offset)


def sent(session: MasterSession, now_ms: int = 0, backlog: int = 0) -> bytes:
    return b"".join(session.data_to_send(backlog, now_ms))


def frames(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        offset, size = unpack_from(">qi", data, at)
        found.append((offset, data[at + 12 : at + 12 + size]))
        at += 12 + size
    assert at == len(data), "a whole number of frames"
    return found


def events(session: MasterSession) -> list[object]:
    found: list[object] = []
    while (event := session.next_event()) is not None:
        found.append(event)
    return found


def closed_because(session: MasterSession) -> str:
    (event,) = [event for event in events(session) if isinstance(event, MasterSessionClosed)]
    assert session.state is MasterSessionState.SHUTDOWN
    return event.reason


def hello(log_end: int = 0, **changes: object) -> SlaveHello:
    fields: dict[str, object] = {
        "cluster": "C", "broker_name": "b", "broker_id": 1, "run_id": 7, "log_start": 0, "log_end": log_end,
        "segment_bytes": 1 << 20,
    }  # fmt: skip
    return SlaveHello(**(fields | changes))  # type: ignore[arg-type]


def introduced(log: FakeLog, start: int = 0, **changes: object) -> MasterSession:
    """Return a session that has answered the hello of a TandemQ slave."""
    session = open_session(log, is_classic=False)
    session.receive_data(encode_hello(hello()), 0)
    assert [type(event) for event in events(session)] == [SlaveHelloReceived]
    session.answer_hello(MasterHello(0, start=start, log_end=log.written_end, **changes))  # type: ignore[arg-type]
    return session


# Before the first report.


@spec("H06")
def test_master_sends_nothing_before_the_first_report() -> None:
    session = open_session(FakeLog(b"x" * 100))
    session.tick(5_000)
    assert sent(session, 5_000) == b""
    session.receive_data(report(0)[:7], 6_000)
    session.tick(15_000)
    assert sent(session, 15_000) == b""
    session.receive_data(report(0)[7:], 16_000)
    assert sent(session, 16_000) != b""


@spec("H06", "H16")
def test_client_that_never_reports_is_closed_after_20s() -> None:
    session = open_session(FakeLog(b"x" * 100))
    assert DEFAULTS.ha_housekeeping_ms == 20_000
    session.tick(20_000)
    assert session.state is MasterSessionState.READY
    assert session.deadline_ms() == 20_001
    session.tick(20_001)
    assert "no report" in closed_because(session)
    assert sent(session, 20_001) == b""


def test_unauthenticated_peer_that_sends_its_hello_slowly_is_closed_after_20s() -> None:
    session = open_session(FakeLog(), is_classic=False)
    raw = encode_hello(hello())
    for second in range(20):
        session.receive_data(raw[second : second + 1], second * 1_000)
        session.tick(second * 1_000)
        assert session.state is not MasterSessionState.SHUTDOWN
    session.tick(20_001)
    assert "no hello within" in closed_because(session)


def test_classic_slave_from_an_address_not_admitted_gets_nothing() -> None:
    session = open_session(FakeLog(b"x" * 100), is_classic=False)
    session.receive_data(report(0), 0)
    assert "haClassicPeers" in closed_because(session)
    assert sent(session) == b""


# Start of the transfer.


@spec("H07", "T01", "T02", "H14", "V01")
def test_slave_at_an_offset_is_served_from_there() -> None:
    log = FakeLog(bytes(range(256)) * 10)
    session = open_session(log)
    session.receive_data(report(1000), 0)
    data = frames(sent(session))
    assert data[0][0] == 1000
    assert b"".join(body for _, body in data) == bytes(log.data[1000:])
    assert events(session) == [SlaveAcked(1000)]


@spec("T03")
@pytest.mark.parametrize(("log_end", "start"), [(0, 0), (50, 0), (100, 100), (250, 200), (300, 300)])
def test_empty_classic_slave_is_served_from_the_start_of_the_last_file(log_end: int, start: int) -> None:
    log = FakeLog(b"x" * log_end, segment_bytes=100)
    session = open_session(log)
    session.receive_data(report(0), 0)
    sent(session)
    assert session.next_offset == log_end
    session = open_session(log)
    session.receive_data(report(0), 0)
    log.data += b"y" * 10
    assert frames(sent(session))[0][0] == start


@spec("T03")
def test_empty_classic_slave_starts_at_the_first_file_held_if_that_is_the_last() -> None:
    session = open_session(FakeLog(b"x" * 30, start=200, segment_bytes=100))
    session.receive_data(report(0), 0)
    assert frames(sent(session))[0][0] == 200


def test_slave_ahead_of_the_master_is_closed() -> None:
    session = open_session(FakeLog(b"x" * 100))
    session.receive_data(report(101), 0)
    assert "another history" in closed_because(session)


def test_slave_that_needs_deleted_bytes_is_closed() -> None:
    session = open_session(FakeLog(b"x" * 100, start=1000))
    session.receive_data(report(999), 0)
    assert "1000" in closed_because(session)


# Frames.


@spec("T04", "T01")
def test_frames_have_at_most_32_kib_and_add_up_to_the_log() -> None:
    assert DEFAULTS.ha_batch_bytes == 32 * 1024
    data = random.Random(3).randbytes(200_000)
    for session in (open_session(FakeLog(data)), introduced(FakeLog(data))):
        if session.is_classic is False and session.hello is None:
            session.receive_data(report(0), 0)
        out = sent(session)
        if session.hello is not None:
            out = out[out.index(b"}") + 1 :]
        found = frames(out)
        assert max(len(body) for _, body in found) == 32 * 1024
        assert b"".join(body for _, body in found) == data
        at = 0
        for offset, body in found:
            assert offset == at
            at += len(body)


@spec("T04")
def test_frame_size_is_a_setting() -> None:
    session = open_session(FakeLog(b"x" * 1000), batch=300)
    session.receive_data(report(0), 0)
    assert [len(body) for _, body in frames(sent(session))] == [300, 300, 300, 100]


@spec("T01")
def test_frames_never_cross_the_end_of_a_file() -> None:
    session = open_session(FakeLog(b"x" * 250, segment_bytes=100))
    session.receive_data(report(30), 0)
    assert [(offset, len(body)) for offset, body in frames(sent(session))] == [(30, 70), (100, 100), (200, 50)]


@spec("T08")
def test_master_sends_bytes_without_parsing_them() -> None:
    data = random.Random(1).randbytes(5_000)
    session = open_session(FakeLog(data))
    session.receive_data(report(0), 0)
    assert b"".join(body for _, body in frames(sent(session))) == data


@spec("T06", "V03", "W10")
def test_new_bytes_are_sent_immediately() -> None:
    log = FakeLog(b"x" * 100)
    session = open_session(log)
    session.receive_data(report(100), 0)
    assert sent(session) == b""
    log.data += b"new"
    assert frames(sent(session, 1)) == [(100, b"new")]


@spec("T17", "V06")
def test_transfer_rate_is_limited() -> None:
    session = open_session(FakeLog(b"x" * 10_000), rate=3_000)
    session.receive_data(report(0), 0)
    amounts = []
    for second in range(5):
        amounts.append(sum(len(body) for _, body in frames(sent(session, second * 1_000))))
        assert sent(session, second * 1_000 + 999) == b""
    assert amounts == [3_000, 3_000, 3_000, 1_000, 0]
    assert DEFAULTS.ha_bytes_per_second == 0


@spec("T17")
def test_rate_limited_session_has_a_deadline_for_the_next_second() -> None:
    session = open_session(FakeLog(b"x" * 10_000), rate=3_000)
    session.receive_data(report(0), 0)
    sent(session)
    assert session.deadline_ms() == 1_000


def test_connection_with_a_large_backlog_gets_no_log_bytes() -> None:
    log = FakeLog(b"x" * 100)
    session = open_session(log)
    session.receive_data(report(0), 0)
    assert sent(session, backlog=64 << 20) == b""
    assert len(sent(session)) == 112


def test_bytes_that_the_page_cache_lacks_are_sent_after_they_were_read() -> None:
    log = FakeLog(b"x" * 100, segment_bytes=4 * READ_BYTES)
    file = SimDisk(random.Random(1)).open("log", create=True)
    log.uncached = FileRange(file, 10, 90)
    session = open_session(log)
    session.receive_data(report(10), 0)
    assert sent(session) == sent(session) == b""
    assert events(session) == [SlaveAcked(10), LogNotCached(FileRange(file, 10, READ_BYTES))], "once"
    session.tick(5_000)
    assert frames(sent(session, 5_000)) == [(10, b"")], "heartbeats go on"
    session.log_cached()
    assert frames(sent(session, 5_000)) == [(10, b"x" * 90)], "the device is waited for if they are missing again"
    log.data += bytes(2 * READ_BYTES)
    assert len(sent(session)) > READ_BYTES
    assert sent(session) == b""
    assert [type(event) for event in events(session)] == [LogNotCached], "what follows is read by the owner again"


def test_next_file_is_not_read_before_the_owner_has_read_it() -> None:
    log = FakeLog(b"x" * 3_000, segment_bytes=1_000)
    log.uncached = FileRange(SimDisk(random.Random(1)).open("log", create=True), 10, 90)
    session = open_session(log)
    session.receive_data(report(10), 0)
    sent(session)
    for end in (1_000, 2_000, 3_000):
        assert LogNotCached in [type(event) for event in events(session)]
        session.log_cached()
        sent(session)
        assert session.next_offset == end


def test_disk_that_cannot_be_read_ends_the_session() -> None:
    class Broken(FakeLog):
        def read_cached(self, offset: int, size: int) -> bytes:
            raise DiskFailed("bad sector")

    session = open_session(Broken(b"x" * 100))
    session.receive_data(report(10), 0)
    sent(session)
    assert "bad sector" in closed_because(session)


# Heartbeats and silence.


@spec("H15")
def test_idle_master_sends_12_bytes_every_5s_with_the_next_offset() -> None:
    assert DEFAULTS.ha_heartbeat_ms == 5_000
    session = open_session(FakeLog(b"x" * 100))
    session.receive_data(report(0), 0)
    sent(session)
    for second in (5, 10, 15):
        session.receive_data(report(100), second * 1_000 - 1)
        assert session.deadline_ms() == second * 1_000
        session.tick(second * 1_000 - 1)
        assert sent(session, second * 1_000 - 1) == b""
        session.tick(second * 1_000)
        assert sent(session, second * 1_000) == pack(">qi", 100, 0)


@spec("H15")
def test_data_replace_a_heartbeat() -> None:
    log = FakeLog(b"x" * 100)
    session = open_session(log)
    session.receive_data(report(100), 0)
    sent(session)
    log.data += b"y"
    sent(session, 4_000)
    session.tick(5_000)
    assert sent(session, 5_000) == b""
    session.tick(9_000)
    assert len(sent(session, 9_000)) == 12


@spec("H16", "H19", "G03")
def test_silent_slave_is_closed_in_spite_of_own_writes() -> None:
    log = FakeLog()
    session = open_session(log)
    session.receive_data(report(0), 0)
    for second in range(1, 21):
        log.data += b"x"
        session.tick(second * 1_000)
        assert sent(session, second * 1_000) != b""
    session.tick(20_001)
    assert "no report for 20001 ms" in closed_because(session)
    assert session.deadline_ms() is None


# Reports.


@spec("H11")
def test_reports_received_byte_by_byte_count_when_complete() -> None:
    session = open_session(FakeLog(b"x" * 1000))
    session.receive_data(report(0), 0)
    sent(session)
    events(session)
    for offset in (1, 500, 1000):
        for byte in report(offset)[:-1]:
            session.receive_data(bytes([byte]), 1)
            assert events(session) == []
        session.receive_data(report(offset)[-1:], 1)
        assert events(session) == [SlaveAcked(offset)]


@spec("H11")
def test_of_571_bytes_received_the_report_in_bytes_560_to_567_counts() -> None:
    session = open_session(FakeLog(b"x" * 1000))
    stream = report(0) + b"".join(report(offset) for offset in range(1, 71)) + report(71)[:3]
    assert len(stream) == 571
    session.receive_data(stream[:8], 0)
    sent(session)
    session.receive_data(stream[8:], 0)
    assert session.acked_offset == 70
    session.receive_data(report(71)[3:], 0)
    assert session.acked_offset == 71


@spec("H11")
def test_thousand_reports_in_one_segment_count_as_the_last() -> None:
    session = open_session(FakeLog(b"x" * 1000))
    session.receive_data(report(0), 0)
    sent(session)
    events(session)
    session.receive_data(b"".join(report(offset) for offset in range(1, 1001)), 0)
    assert session.acked_offset == 1000
    assert events(session) == [SlaveAcked(1000)]


@spec("H11")
def test_three_stray_bytes_before_reports_are_detected() -> None:
    session = open_session(FakeLog(b"x" * 1000))
    session.receive_data(b"abc" + report(0), 0)
    assert closed_because(session)


@spec("H11")
def test_three_stray_zeroes_before_reports_are_detected() -> None:
    """The first reports are then read as 0, which acknowledges nothing; the next ones are not valid offsets."""
    session = open_session(FakeLog(b"x" * 1000))
    session.receive_data(bytes(3) + report(0), 0)
    sent(session)
    session.receive_data(report(1000), 0)
    assert session.acked_offset == 0
    session.receive_data(report(1000), 0)
    assert closed_because(session)


@spec("H12")
def test_more_than_1_mib_of_reports_are_read_correctly() -> None:
    log = FakeLog(b"x" * 140_000)
    for session, frame in ((open_session(log), report), (introduced(log), lambda at: checked(KIND_REPORT, report(at)))):
        if session.hello is None:
            session.receive_data(report(0), 0)
        sent(session)
        sent(session)
        stream = b"".join(frame(offset) for offset in range(1, 131_074))
        for at in range(0, len(stream), 65_521):
            session.receive_data(stream[at : at + 65_521], 0)
        assert session.acked_offset == 131_073
        assert session.state is MasterSessionState.TRANSFER


@spec("H14")
def test_smaller_report_only_lowers_the_acknowledged_offset() -> None:
    log = FakeLog(b"x" * 1000)
    session = open_session(log)
    session.receive_data(report(200), 0)
    sent(session)
    session.receive_data(report(1000), 0)
    session.receive_data(report(300), 0)
    assert session.acked_offset == 300
    log.data += b"yz"
    assert frames(sent(session)) == [(1000, b"yz")]


@spec("H25", "W09")
@pytest.mark.parametrize("offset", [-1, 1001, 1 << 62, -(1 << 63)])
def test_report_beyond_the_sent_bytes_acknowledges_nothing_and_closes(offset: int) -> None:
    log = FakeLog(b"x" * 1000)
    for session, frame in (
        (open_session(log), report(offset)),
        (introduced(log), checked(KIND_REPORT, report(offset))),
    ):
        if session.hello is None:
            session.receive_data(report(0), 0)
        sent(session)
        events(session)
        session.receive_data(frame, 0)
        assert [type(event) for event in events(session)] == [MasterSessionClosed]
        assert session.acked_offset <= 0


@spec("H25")
def test_report_counts_only_up_to_what_was_sent_on_this_connection() -> None:
    """The log is longer than the sent bytes: a report of its end cannot be true."""
    session = open_session(FakeLog(b"x" * 10_000), rate=1_000)
    session.receive_data(report(0), 0)
    sent(session)
    session.receive_data(report(10_000), 0)
    assert "only 1000 was sent" in closed_because(session)


@spec("H25", "T18", "V07")
@given(st.lists(st.binary(max_size=200), max_size=30), st.booleans())
def test_garbage_acknowledges_nothing(pieces: list[bytes], is_classic: bool) -> None:
    log = FakeLog(b"x" * 1000)
    session = open_session(log, is_classic=is_classic)
    for piece in pieces:
        session.receive_data(piece, 0)
        sent(session)
        for event in events(session):
            assert not isinstance(event, SlaveAcked) or event.log_offset <= session.next_offset
            if isinstance(event, SlaveHelloReceived):
                session.answer_hello(MasterHello(0, refused="rubbish"))
        assert len(session._in) <= 2 << 20  # limit of bytes buffered for unauthenticated peers
    assert session.acked_offset <= session.next_offset


# Hellos.


@spec("T16")
def test_hello_is_answered_with_start_and_log_end() -> None:
    session = introduced(FakeLog(b"x" * 1000), start=600)
    out = sent(session)
    assert out.startswith(HELLO_MARK)
    assert b'"start":600' in out
    assert b'"logEnd":1000' in out
    assert out.endswith(pack(">qi", 600, 400) + b"x" * 400)


def test_hello_may_arrive_byte_by_byte_followed_by_reports() -> None:
    log = FakeLog(b"x" * 1000)
    session = open_session(log, is_classic=False)
    for byte in encode_hello(hello()):
        session.receive_data(bytes([byte]), 0)
    assert [type(event) for event in events(session)] == [SlaveHelloReceived]
    session.receive_data(checked(KIND_REPORT, report(0)), 0)
    session.answer_hello(MasterHello(0))
    assert events(session) == [SlaveAcked(0)]


def test_refused_slave_gets_the_reason_before_the_connection_closes() -> None:
    session = open_session(FakeLog(), is_classic=False)
    session.receive_data(encode_hello(hello()), 0)
    events(session)
    session.answer_hello(MasterHello(0, refused="another cluster"))
    assert b"another cluster" in sent(session)
    assert "another cluster" in closed_because(session)


@spec("T18", "V07")
@pytest.mark.parametrize("length", [0, -1, -(1 << 31), (1 << 20) + 1, (1 << 31) - 1])
def test_hello_of_invalid_length_closes(length: int) -> None:
    session = open_session(FakeLog(), is_classic=False)
    session.receive_data(HELLO_MARK + pack(">i", length), 0)
    assert "hello" in closed_because(session)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b"\xff\xfe", b"null", b"[" * 5000])
def test_malformed_hello_closes(body: bytes) -> None:
    session = open_session(FakeLog(), is_classic=False)
    session.receive_data(HELLO_MARK + pack(">i", len(body)) + body, 0)
    assert closed_because(session)


def test_unknown_kind_of_frame_closes() -> None:
    session = introduced(FakeLog())
    session.receive_data(checked(9, report(0)), 0)
    assert "kind 9" in closed_because(session)


@spec("T18", "W09")
@pytest.mark.parametrize(
    "frame",
    [
        checked(KIND_REPORT, report(900)),
        checked(KIND_PROMISE, pack(">qq", 900, 3)),
        checked(KIND_HEARTBEAT, pack(">qqiqq", 7, 3, 5_000, 900, 900)),
        checked(KIND_SAVED, pack(">q", 3)),
    ],
    ids=["report", "promise", "heartbeat", "saved"],
)
def test_every_flipped_bit_of_a_slaves_frames_is_detected(frame: bytes) -> None:
    for bit in range(len(frame) * 8):
        session = introduced(FakeLog(b"x" * 1000))
        sent(session)
        events(session)
        turned = bytearray(frame)
        turned[bit // 8] ^= 1 << bit % 8
        session.receive_data(bytes(turned) + checked(KIND_HEARTBEAT, bytes(36)), 0)
        assert [type(event) for event in events(session)] == [MasterSessionClosed], f"bit {bit}"
        assert session.acked_offset <= 0


# A tail that the master had lost.


def test_tail_is_verified_and_passed_on_then_the_transfer_starts_after_it() -> None:
    whole = make_log([100] * 10, 1 << 20)
    log = FakeLog(whole[: len(whole) // 10 * 4], segment_bytes=1 << 20)
    session = introduced(log, start=log.written_end, send_tail=True)
    sent(session)
    tail = whole[log.written_end :]
    first, second = tail[:333], tail[333:]
    for at, piece in ((log.written_end, first), (log.written_end + 333, second)):
        session.receive_data(checked(KIND_TAIL, pack(">qi", at, len(piece))) + piece, 0)
    session.receive_data(checked(KIND_REPORT, report(len(whole))), 0)
    found = events(session)
    pieces = [piece for event in found if isinstance(event, TailReceived) for piece in event.pieces]
    assert b"".join(piece.data for piece in pieces) == tail
    assert isinstance(found[-1], TailComplete)
    log.data += tail
    session.begin_transfer(log.written_end)
    assert session.acked_offset == log.written_end


def test_tail_ends_with_the_first_report_after_it() -> None:
    """Found by simulation seed 1080946: a master that had been paused received several reports at once."""
    whole = make_log([100] * 4, 1 << 20)
    log = FakeLog(segment_bytes=1 << 20)
    session = introduced(log, send_tail=True)
    sent(session)
    session.receive_data(checked(KIND_TAIL, pack(">qi", 0, len(whole))) + whole, 0)
    session.receive_data(2 * checked(KIND_REPORT, report(len(whole))), 0)
    assert [type(event) for event in events(session)] == [TailReceived, TailComplete]
    session.receive_data(checked(KIND_TAIL, pack(">qi", len(whole), 1)) + b"x", 0)
    assert [type(event) for event in events(session)] == [MasterSessionClosed]


@pytest.mark.parametrize("change", ["gap", "flip", "huge", "negative"])
def test_invalid_tail_closes_and_none_of_it_is_passed_on(change: str) -> None:
    whole = make_log([100] * 4, 1 << 20)
    session = introduced(FakeLog(), send_tail=True)
    sent(session)
    data, at, size = bytearray(whole), 0, len(whole)
    if change == "gap":
        at = 1
    elif change == "flip":
        data[120] ^= 4
    else:
        size = {"huge": 1 << 30, "negative": -1}[change]
    session.receive_data(checked(KIND_TAIL, pack(">qi", at, size)) + bytes(data), 0)
    found = events(session)
    assert isinstance(found[-1], MasterSessionClosed)
    assert not any(isinstance(event, TailReceived) for event in found)


@spec("H21", "H18")
def test_closed_session_neither_receives_nor_sends() -> None:
    log = FakeLog(b"x" * 100)
    session = open_session(log)
    session.receive_data(report(100), 0)
    sent(session)
    session.end("over")
    session.receive_data(report(50), 1)
    session.tick(30_000)
    log.data += b"more"
    assert session.acked_offset == 100
    assert sent(session, 30_000) == b""
    assert [type(event) for event in events(session)] == [SlaveAcked, MasterSessionClosed]
