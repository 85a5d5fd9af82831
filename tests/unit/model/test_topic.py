"""Valid and reserved names of topics and groups."""

import pytest

from tandemq.model.topic import dead_letter_topic, group_name_error, is_system_group, retry_topic, topic_name_error


@pytest.mark.parametrize("name", ["a", "A-b_c|d%e9", "x" * 127, "%RETRY%" + "g" * 248, "%DLQ%g"])
def test_topic_name_is_accepted(name: str) -> None:
    assert topic_name_error(name) is None


@pytest.mark.parametrize("name", ["", "x" * 128, "a b", "a/b", "../x", "a.b", "é", "a\n", "a\0", "%RETRY%" + "g" * 249])
def test_topic_name_is_refused_with_a_reason(name: str) -> None:
    assert topic_name_error(name)


def test_group_name_may_be_longer_than_a_topic_name() -> None:
    assert group_name_error("g" * 255) is None
    assert group_name_error("g" * 256)
    assert group_name_error("")
    assert group_name_error("g g")


def test_retry_and_dead_letter_topics_are_named_after_their_group() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"


def test_system_groups_are_known_by_name_or_prefix() -> None:
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_anything")
    assert not is_system_group("mine")
