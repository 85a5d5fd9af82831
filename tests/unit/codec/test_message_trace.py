"""Lines of RocketMQ's message trace."""

import pytest

from tandemq.codec.message_trace import TraceKind, TraceRecord, decode_traces, encode_trace, trace_keys


def line(text: str) -> str:
    """A line written with | between its fields."""
    return text.replace("|", "\x01") + "\x02"


EXAMPLES = {
    "Pub|17|DefaultRegion|orders|T|ID1|paid|k1 k2|127.0.0.1:10911|42|3|0|OFF1|true": TraceRecord(
        kind=TraceKind.PUB,
        time_ms=17,
        region="DefaultRegion",
        group="orders",
        topic="T",
        message_id="ID1",
        tags="paid",
        keys="k1 k2",
        store_host="127.0.0.1:10911",
        body_bytes=42,
        cost_ms=3,
        offset_message_id="OFF1",
    ),
    "Pub|17|r|orders|T|ID1|null|null|b:1|0|0|3|OFF1|false": TraceRecord(
        kind=TraceKind.PUB,
        time_ms=17,
        region="r",
        group="orders",
        topic="T",
        message_id="ID1",
        store_host="b:1",
        message_type=3,
        offset_message_id="OFF1",
        success=False,
    ),
    "SubBefore|18|DefaultRegion|billing|R1|ID1|2|k1": TraceRecord(
        kind=TraceKind.SUB_BEFORE,
        time_ms=18,
        region="DefaultRegion",
        group="billing",
        request_id="R1",
        message_id="ID1",
        retry_times=2,
        keys="k1",
    ),
    "SubAfter|R1|ID1|5|false|null|4|19|billing": TraceRecord(
        kind=TraceKind.SUB_AFTER,
        request_id="R1",
        message_id="ID1",
        cost_ms=5,
        success=False,
        context_code=4,
        time_ms=19,
        group="billing",
    ),
    "EndTransaction|20|r|orders|T|ID1|null|null|b:1|2|TX1|COMMIT_MESSAGE|true": TraceRecord(
        kind=TraceKind.END_TRANSACTION,
        time_ms=20,
        region="r",
        group="orders",
        topic="T",
        message_id="ID1",
        store_host="b:1",
        message_type=2,
        transaction_id="TX1",
        transaction_state="COMMIT_MESSAGE",
        from_check=True,
    ),
    "Recall|21|r|orders|T|ID1|true": TraceRecord(
        kind=TraceKind.RECALL,
        time_ms=21,
        region="r",
        group="orders",
        topic="T",
        message_id="ID1",
    ),
}
"""Lines as Java writes them; tests/interop has Java write and read them."""


def test_record_is_written_as_java_writes_it_and_read_again() -> None:
    for text, record in EXAMPLES.items():
        assert encode_trace(record) == line(text)
        assert decode_traces(line(text)) == ([record], 0)
    assert decode_traces("".join(map(line, EXAMPLES))) == (list(EXAMPLES.values()), 0)
    assert {record.kind for record in EXAMPLES.values()} == set(TraceKind)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Pub|17|r|g|T|ID|t|k|h|4|3|0", (True, None, None)),
        ("Pub|17|r|g|T|ID|t|k|h|4|3|0|false", (False, None, None)),
        ("Pub|17|r|g|T|ID|t|k|h|4|3|0|OFF|false|c", (False, "OFF", "c")),
        ("Pub|17|r|g|T|ID|t|k|h|4|3|0|OFF|true|c|?", (True, "OFF", "c")),
        ("SubAfter|R|ID|3|true|k", (True, None, None)),
        ("SubAfter|R|ID|3|true|k|0|", (True, None, None)),
    ],
)
def test_lines_of_older_clients_are_read(text: str, wanted: tuple[bool, str | None, str | None]) -> None:
    [record], unreadable = decode_traces(line(text))
    assert (record.success, record.offset_message_id, record.client_host) == wanted
    assert (record.message_id, record.cost_ms, unreadable) == ("ID", 3, 0)


@pytest.mark.parametrize(
    "text",
    ["Sub", "Pub", "Pub|1", "Pub|x|r|g|T|ID|t|k|h|4|3|0|OFF|true", "||", "SubBefore|" + "9" * 5000 + "|r|g|R|ID|0|k"],
)
def test_line_that_is_none_is_counted_and_hides_no_other(text: str) -> None:
    good, record = next(iter(EXAMPLES.items()))
    assert decode_traces(line(text) + line(good)) == ([record], 1)


def test_empty_body_has_no_lines() -> None:
    assert decode_traces("") == decode_traces("\x02\x02") == ([], 0)


def test_keys_are_the_ids_and_all_words_once() -> None:
    records = [
        TraceRecord(kind=TraceKind.PUB, message_id="ID1", keys="a  b"),
        TraceRecord(kind=TraceKind.SUB_AFTER, message_id="ID1", keys="b c"),
        TraceRecord(kind=TraceKind.RECALL),
    ]
    assert trace_keys(records) == ["ID1", "a", "b", "c"]
