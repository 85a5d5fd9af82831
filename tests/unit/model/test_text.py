"""Texts from peers, shortened for log lines."""

from tandemq.model.text import brief


def test_long_text_is_cut_and_its_omitted_characters_are_counted() -> None:
    assert brief("a" * 200) == "a" * 200
    assert brief("a" * 201) == "a" * 200 + "… (1 more characters)"
    assert brief({1: 2}, 3) == "{1:… (3 more characters)"
    assert brief(None) == "None"
