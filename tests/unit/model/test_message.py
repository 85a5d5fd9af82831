"""Encoded properties, and the attributes of stored messages."""

from hypothesis import given
from hypothesis import strategies as st

from tandemq.model.message import StoredMessage, decode_properties, encode_properties

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(TEXT, TEXT, max_size=8))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_properties_are_read_with_and_without_the_last_separator() -> None:
    assert decode_properties("a\x01b\x02c\x01d") == {"a": "b", "c": "d"}
    assert decode_properties("a\x01b\x02c\x01d\x02") == {"a": "b", "c": "d"}


def test_properties_without_name_or_value_are_dropped() -> None:
    assert decode_properties("\x01long value\x02name\x01\x02alone\x02x\x02\x02k\x01v\x02") == {"k": "v"}


def test_a_value_may_contain_name_separators() -> None:
    assert decode_properties("name\x01one\x01two\x02") == {"name": "one\x01two"}


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(decode_properties(text))


def test_message_has_tags_keys_and_unique_key() -> None:
    message = StoredMessage(
        "T", 0, 0, 0, b"", {"TAGS": "a", "KEYS": " k1  k2 ", "UNIQ_KEY": "u"}, 0, 0, 0, "", 0, "", 0, 0, 91, ""
    )
    assert (message.tags, message.keys, message.unique_key) == ("a", ["k1", "k2"], "u")
    plain = StoredMessage("T", 0, 0, 0, b"", {}, 0, 0, 0, "", 0, "", 0, 0, 91, "")
    assert (plain.tags, plain.keys, plain.unique_key) == ("", [], "")
