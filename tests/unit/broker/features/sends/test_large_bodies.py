"""Large bodies, which are written from where they were received: the same bytes as of the decoded path, however they
arrive."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import DiskFault
from tandemq.engine import LARGE_BODY_BYTES, NAME
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.broker.features.sends.comparison import Recorder, compare, compare_turns, run_script
from tests.unit.broker.features.sends.messages import Count, batch, codes, parts_of, send
from tests.unit.broker.harness import CLIENT

pytestmark = pytest.mark.usefixtures("by_engine")
LARGE: dict[str, Any] = {"segment_bytes": 1 << 20, "message_bytes_max": 300_000, "frame_bytes_max": 1 << 20}
OK = ResponseCode.SUCCESS
FORMS: dict[str, dict[str, Any]] = {
    "JSON": {},
    "binary": {"binary": True},
    "with a delay level": {"properties": "DELAY\x013\x02"},
    "timed": {"properties": "TIMER_DELAY_SEC\x0160\x02"},
    "half": {"properties": "TRAN_MSG\x01true\x02PGROUP\x01group\x02"},
    "with an escaped property": {"properties": 'A\x01"\\\x02'},
    "one-way": {"flag": 2},
}


def noise(size: int) -> bytes:
    return Random(size).randbytes(size)


def pieces(data: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    return ((CLIENT, data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("form", FORMS)
def test_large_body_of_any_form_is_stored_like_a_small_one(by_engine: Count, form: str) -> None:
    sizes = (LARGE_BODY_BYTES - 1, LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1, 65_536, 100_001, 262_144)
    data = b"".join([send(number, body=noise(size), **FORMS[form]) for number, size in enumerate(sizes)])
    data += send(9, body=noise(70_000), **FORMS[form]) + send(10)
    for size in (len(data), 65_536, 20_000):
        compare_turns([list(pieces(data, size))], **LARGE)
        compare_turns([[piece] for piece in pieces(data, size)], **LARGE)
    by_engine.expect(7 * 6)


@pytest.mark.parametrize("form", ["JSON", "binary"])
def test_large_frame_cut_at_any_byte_near_its_borders(by_engine: Count, form: str) -> None:
    before, frame = send(1), send(2, body=noise(20_000), **FORMS[form])
    data = before + frame + send(3)
    begin, end = len(before), len(before) + len(frame)
    header = len(frame) - 20_000
    near = [*range(begin, begin + 12), *range(begin + header - 3, begin + header + 3), *range(end - 3, end + 4)]
    turns = [[(CLIENT, data[:cut]), (2, send(50)), (CLIENT, data[cut:])] for cut in near]
    compare_turns(turns, **LARGE)
    cuts = sorted({0, begin + header + 1, begin + header + 2, begin + header + 9_000, end - 1, end, len(data)})
    compare_turns([[(CLIENT, data[first:last])] for first, last in pairwise(cuts)], **LARGE)
    by_engine.expect(len(near))


def test_code_10_and_batches_with_large_messages(by_engine: Count) -> None:
    frames = [batch(1, parts_of(1, 3, size=30_000)), batch(2, parts_of(5, 2, size=90_000), binary=True)]
    frames.append(send(3, body=noise(90_000), code=RequestCode.SEND_MESSAGE))
    data = b"".join(frames)
    for size in (len(data), 50_000):
        compare_turns([list(pieces(data, size))], **LARGE)
    by_engine.expect(5)


def test_large_bodies_at_the_end_of_a_file() -> None:
    data = b"".join([send(number, body=noise(90_000 + 7 * number)) for number in range(40)])
    broker = compare_turns([list(pieces(data, 400_000))], **LARGE)
    assert len(broker.node.store.log.segment_starts) == 4
    assert codes(broker) == [OK] * 40


def test_body_above_the_limit_is_refused_in_parts_too() -> None:
    data = send(1, body=noise(300_001)) + send(2, body=noise(300_000))
    broker = compare_turns([list(pieces(data, 65_536))], **LARGE)
    assert codes(broker) == [ResponseCode.MESSAGE_ILLEGAL, OK]


def test_large_messages_of_a_write_that_fails_are_refused_and_leave_nothing() -> None:
    data = b"".join([send(number, body=noise(100_000)) for number in range(3)])

    def script(broker: Recorder) -> None:
        broker.receive(list(pieces(data, 65_536)))
        end, disk = broker.node.store.log.written_end, broker.disk_in_memory
        for _ in range(3):
            disk.faults.append(DiskFault("pwrite", error=DiskFull, prefix="commitlog/"))
            broker.receive(list(pieces(data, 65_536)))
            assert broker.node.store.log.written_end == broker.node.store.log.end == end
        raw = disk.read("commitlog/" + "0" * 20)
        assert raw is not None
        assert not any(raw[end:]), "the part that was written is erased"
        broker.receive(list(pieces(data, 65_536)))

    broker = compare(script, **LARGE)
    assert codes(broker) == [OK] * 3 + [ResponseCode.SERVICE_NOT_AVAILABLE] * 9 + [OK] * 3


def test_body_is_written_from_the_bytes_that_were_received() -> None:
    data = send(1, body=noise(200_000))
    received = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    written: list[Any] = []

    def script(broker: Recorder) -> None:
        append = broker.node.store.log.append

        def noting(*parts: Any) -> None:
            written.extend(parts)
            append(*parts)

        broker.node.store.log.append = noting  # type: ignore[method-assign]
        broker.receive([(CLIENT, piece) for piece in received])

    broker = run_script(script, uses_engine=True, **LARGE)
    assert codes(broker) == [OK]
    shared = [part.obj if isinstance(part, memoryview) else part for part in written]
    count = sum(any(piece is part for part in shared) for piece in received)
    assert count == (0 if NAME == "python" else len(received))
