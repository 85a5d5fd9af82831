"""Tag expressions of subscriptions."""

import pytest

from tandemq.model.group import parse_tag_expression, tag_codes
from tandemq.model.java_hash import java_hash


@pytest.mark.parametrize("expression", [None, "", "*", "  ", " * "])
def test_expression_for_all_messages_has_no_tag(expression: str | None) -> None:
    assert parse_tag_expression(expression) is None


def test_tags_of_an_expression_are_trimmed_and_in_order() -> None:
    assert parse_tag_expression(" b || a||c ") == ["b", "a", "c"]
    assert parse_tag_expression("one") == ["one"]


def test_expression_of_separators_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="names no tag"):
        parse_tag_expression(" || ")


def test_codes_are_javas_hashes() -> None:
    assert tag_codes(["TagA", "polygenelubricants"]) == [java_hash("TagA"), -(1 << 31)]
