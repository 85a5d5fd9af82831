"""Output of commands: texts of any client control no terminal, and times that no calendar has are printed."""

import json

import pytest

from tandemq.cli.admin.message import _line
from tandemq.cli.support.output import show_facts, show_json, show_rows, time_text
from tests.unit.console.fakes import stored

EVIL = "a\x1b[2J\x9b2J\r\n\u202eb"


def test_text_of_clients_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"client": EVIL, "count": 1}], as_json=False)
    show_facts({"client": EVIL}, as_json=False)
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("a·[2J·2J···b") == 2


def test_json_escapes_what_json_would_leave(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"client": EVIL})
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\r"} & set(shown)
    assert json.loads(shown) == {"client": EVIL}


def test_line_of_a_message_shows_its_key_tag_and_body_without_control_characters() -> None:
    message = stored("T", 1, EVIL.encode(), properties={"UNIQ_KEY": EVIL, "KEYS": EVIL, "TAGS": EVIL})
    assert _line(message).isprintable()


@pytest.mark.parametrize("wall_ms", [10**15, 1 << 62, 10**30])
def test_time_that_no_calendar_has_is_printed_as_its_number(wall_ms: int) -> None:
    assert time_text(wall_ms) == str(wall_ms)
