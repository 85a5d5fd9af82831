"""Tag expressions: matching, and their memory budget."""

from pathlib import Path

import pytest

from tandemq.broker.state.subscriptions import EXPRESSION_BYTES_MAX, KEPT_BYTES_MAX, TAGS_MAX, TagExpressions
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.java_hash import java_hash
from tests.request_fields import pull_fields
from tests.unit.broker.harness import Harness


def test_expression_is_parsed_to_the_codes_of_its_tags() -> None:
    expressions = TagExpressions()
    for _ in range(2):
        assert expressions.parse("a || b") == frozenset({java_hash("a"), java_hash("b")})
        assert expressions.parse("*") is None
        assert expressions.parse(None) is None


def test_thousands_of_long_expressions_stay_within_the_budget() -> None:
    expressions = TagExpressions()
    for number in range(500):
        tag = f"{number}".rjust(EXPRESSION_BYTES_MAX, "x")
        assert expressions.parse(tag)
        assert expressions.kept_bytes <= KEPT_BYTES_MAX
    assert 0 < len(expressions._kept) < 100


def test_expressions_beyond_the_limits_are_refused_with_a_reason() -> None:
    expressions = TagExpressions()
    with pytest.raises(ValueError, match="takes 65537 bytes, at most 65536"):
        expressions.parse("x" * (EXPRESSION_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="takes 65538 bytes"):
        expressions.parse("\u00e9" * (EXPRESSION_BYTES_MAX // 2 + 1))
    with pytest.raises(ValueError, match="names 2049 tags"):
        expressions.parse("||".join(str(number) for number in range(TAGS_MAX + 1)))
    assert expressions.kept_bytes == 0


def test_pull_with_a_long_expression_is_refused_and_a_held_one_keeps_no_text(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    fields = pull_fields("TopicA", 1, sysFlag=6, suspendTimeoutMillis=9_000, subscription="x" * 65_537)
    answer = broker.ask(RequestCode.PULL_MESSAGE, fields)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at most 65536" in str(answer.remark)
    broker.send_request(RequestCode.PULL_MESSAGE, fields | {"subscription": "x" * 65_536})
    (held,) = broker.node.pull.held.release_some(1)
    assert held.fields.subscription is None


def test_held_pull_keeps_neither_expression_nor_its_type_without_the_subscription_flag(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.heartbeat("group", {"TopicA": "*"})
    texts = {"subscription": "x" * 30_000, "expressionType": "y" * 30_000}
    fields = pull_fields("TopicA", 1, sysFlag=2, suspendTimeoutMillis=9_000, **texts)
    broker.send_request(RequestCode.PULL_MESSAGE, fields)
    (held,) = broker.node.pull.held.release_some(1)
    assert (held.fields.subscription, held.fields.expression_type) == (None, None)
