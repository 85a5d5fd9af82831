"""Headers read by patterns: the same fields as by decoding, and no match for headers of another form."""

import json
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting.requests import decode_send_frame
from tandemq.codec.remoting.send_header import PATTERNS_MAX, SendHeaders, SendRun

KEYS = st.text("0123456789ABCDEF", min_size=1, max_size=40)


def header(queue: int = 3, born: int = 1_700_000_000_000, key: str = "7F01", opaque: int = 17, **fields: str) -> bytes:
    sent = {
        "a": "g",
        "b": "T",
        "e": str(queue),
        "f": "0",
        "g": str(born),
        "h": "0",
        "i": f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02",
        **fields,
    }
    value = {"code": 310, "extFields": sent, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    return json.dumps(value, separators=(",", ":")).encode()


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**18 - 1), KEYS, st.integers(0, 10**9 - 1))
def test_pattern_reads_what_decoding_reads(queue: int, born: int, key: str, opaque: int) -> None:
    matches = SendHeaders().learn(header())
    assert matches is not None
    other = header(queue, born, key, opaque)
    match = matches(other)
    assert match is not None
    frame = decode_send_frame(other)
    assert [int(text) for text in match.group("queue", "born", "opaque")] == [
        frame.extFields.queue_id,
        frame.extFields.born_timestamp,
        frame.opaque,
    ]
    assert match["key"].decode() == key
    assert f"UNIQ_KEY\x01{key}\x02" in frame.extFields.properties


@pytest.mark.parametrize(
    "other",
    [
        header(b="U"),
        header(f="1"),
        header(i="UNIQ_KEY\x017F01\x02TAGS\x01u\x02"),
        header(m="true"),
        header(queue=-1),
        header(opaque=-1),
        header(key="7F\x0201"),
        header()[:-1],
        header() + b" ",
        b"",
    ],
)
def test_header_that_differs_elsewhere_does_not_match(other: bytes) -> None:
    matches = SendHeaders().learn(header())
    assert matches is not None
    assert matches(other) is None


@pytest.mark.parametrize(
    "odd",
    [
        header(a="UNIQ_KEY\x0100\x02"),
        header(i="TAGS\x01t\x02"),
        header().replace(b'"e":"3"', b'"e":3'),
        header().replace(b'"opaque":17', b'"opaque":17,"opaque":18'),
        header(a="x" * 5000),
    ],
)
def test_header_without_each_value_exactly_once_is_not_learned(odd: bytes) -> None:
    assert SendHeaders().learn(odd) is None


def test_patterns_are_shared_and_their_number_is_limited() -> None:
    headers = SendHeaders()
    assert headers.learn(header(opaque=1)) is headers.learn(header(opaque=99))
    for number in range(PATTERNS_MAX + 10):
        headers.learn(header(a=f"group{number}"))
        assert len(headers._known) <= PATTERNS_MAX


def framed(first: bytes, body: bytes) -> bytes:
    return pack(">II", 4 + len(first) + len(body), len(first)) + first + body


def test_frames_of_one_length_are_split_together() -> None:
    run = SendRun(header(), 3)
    numbers = [(number % 8, 1_700_000_000_000 + number, f"7F{number:02d}", 10 + number) for number in range(50)]
    data = b"".join([framed(header(*place), b"%03d" % place[3]) for place in numbers])
    sends = run.read(data, 50)
    assert sends is not None
    found = [(int(q), int(b), k.decode(), int(o)) for q, b, k, o in zip(*sends[:4], strict=True)]
    assert found == numbers
    assert sends.bodies == tuple(b"%03d" % place[3] for place in numbers)


@pytest.mark.parametrize(
    "odd",
    [
        framed(header(queue=33), b"12"),
        framed(header(opaque=177), b"12"),
        framed(header()[:-1], b"}123"),
        framed(header(key="7F0_"), b"123"),
        framed(header(topic="U")[: len(header())], b"123"),
        framed(header().replace(b'"T"', b'"U"'), b"123"),
        framed(header().replace(b'"opaque":17', b'"opaque":-7'), b"123"),
        framed(header().replace(b'"e":"3"', b'"e":"x"'), b"123"),
        framed(header(key="7\x022F")[: len(header())], b"123"),
    ],
)
def test_one_frame_of_another_form_is_detected(odd: bytes) -> None:
    run, good = SendRun(header(), 3), framed(header(), b"123")
    assert run.read(good * 3, 3) is not None
    for data in (odd + good * 2, good + odd + good, good * 2 + odd):
        count = len(data) // run.frame_bytes
        assert run.read(data[: count * run.frame_bytes], count) is None
