"""Figures per tag are exact in any order of messages."""

import itertools
import json

from tandemq.demo.statistics import Figures, TagStatistics


def test_figures_from_messages_equal_those_from_the_file_in_any_order() -> None:
    values = [("a", "0.1"), ("a", "0.2"), ("a", "0.3"), ("b", ""), ("a", "1e16"), ("a", "-1e16"), ("b", "7")]
    from_file = TagStatistics("delay").add_all(values)
    for order in itertools.islice(itertools.permutations(values), 0, 5_000, 97):
        from_messages = TagStatistics("delay")
        for tag, value in order:
            from_messages.add(tag, json.dumps({"other": "1", "delay": value}).encode())
        assert from_messages.by_tag == from_file.by_tag
    assert from_file.rows == 7
    assert from_file.by_tag["b"] == Figures(rows=2, values=1, total=7)
    assert from_file.by_tag["b"].mean == 7.0


def test_mean_without_values_is_none() -> None:
    assert Figures(rows=3).mean is None


def test_one_value_more_makes_a_difference() -> None:
    assert TagStatistics("d").add_all([("a", "1")]).by_tag != TagStatistics("d").add_all([("a", "1"), ("a", "")]).by_tag
