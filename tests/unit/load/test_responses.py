"""Responses are counted correctly for any split of the stream."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting.frame import encode_command
from tandemq.load.wire.responses import LoadError, ResponseCounter, parse_response
from tandemq.model.command import Command


def response(code: int, opaque: int = 1, padding: str = "", body: bytes = b"") -> bytes:
    remark = f',"remark":"no {padding}\\"x\\""' if code else ""
    header = (
        f'{{"code":{code},"extFields":{{"queueOffset":"{padding or 1}"}},"flag":1,"language":"JAVA",'
        f'"opaque":{opaque}{remark},"version":479}}'
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


_streams = st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 2, 10, 14]), st.sampled_from(["", "1", "12", "12"])))


@given(_streams, st.lists(st.integers(min_value=1, max_value=700)))
def test_stream_in_any_split_counts_the_same(codes: list[tuple[int, str]], cuts: list[int]) -> None:
    stream = b"".join(response(code, number, padding) for number, (code, padding) in enumerate(codes))
    counter = ResponseCounter()
    count = good = position = 0
    for size in [*cuts, len(stream)]:
        counted, of_these_good = counter.feed(stream[position : position + size])
        count, good = count + counted, good + of_these_good
        position += size
    assert count == len(codes)
    assert good == sum(code == 0 for code, _ in codes)
    for code in (2, 10, 14):
        assert counter.statuses.get(code, 0) == sum(one == code for one, _ in codes)


def binary_response(code: int, padding: str = "") -> bytes:
    fields = {"queueOffset": padding or "1"}
    return encode_command(Command(code, fields=fields, flag=1, remark="no" if code else None, binary=True))


@given(_streams, st.lists(st.integers(min_value=1, max_value=700)))
def test_binary_responses_are_counted_too(codes: list[tuple[int, str]], cuts: list[int]) -> None:
    """And those in JSON among them."""
    stream = b"".join(
        response(code, number, padding) if number % 3 == 2 else binary_response(code, padding)
        for number, (code, padding) in enumerate(codes)
    )
    counter = ResponseCounter()
    count = good = position = 0
    for size in [*cuts, len(stream)]:
        counted, of_these_good = counter.feed(stream[position : position + size])
        count, good = count + counted, good + of_these_good
        position += size
    assert (count, good) == (len(codes), sum(code == 0 for code, _ in codes))


@pytest.mark.parametrize("extra", [b"", response(0)[:3], response(0)[:30], response(0, padding="123456")])
def test_many_responses_of_one_length_are_counted_with_those_after_them(extra: bytes) -> None:
    counter = ResponseCounter()
    whole = len(extra) == len(response(0, padding="123456"))
    assert counter.feed(response(0) * 40 + extra) == ((41, 41) if whole else (40, 40))


def test_shorter_response_after_many_of_one_length_is_counted() -> None:
    assert ResponseCounter().feed(response(0, padding="123456") * 40 + response(0)) == (41, 41)


def test_first_refusal_has_code_and_remark() -> None:
    counter = ResponseCounter()
    counter.feed(response(0) + response(14, padding="disk full") + response(2))
    assert counter.first_refusal.startswith("code 14: no disk full")


def test_another_protocol_on_the_port_is_an_error() -> None:
    with pytest.raises(LoadError, match="not this protocol"):
        ResponseCounter().feed(b"HTTP/1.1 400 Bad Request\r\n")


def test_response_has_its_fields_and_body() -> None:
    parsed = parse_response(response(0, padding="42", body=b"xyz"))
    assert (parsed.code, parsed.field("queueOffset"), parsed.field("absent"), parsed.body) == (0, "42", None, b"xyz")
