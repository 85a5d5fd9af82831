"""Log lines as JSON."""

import json
import logging

import pytest

from tandemq.cli.support.log_format import LINE_CHARACTERS_MAX, BoundedFormatter, JsonFormatter
from tandemq.config.files import load_broker_config
from tandemq.errors import ConfigError
from tests.spec import spec


def line_of(text: str, *values: object, error: BaseException | None = None) -> dict[str, object]:
    """Return the parsed line of a record."""
    caught = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("tandemq.x", logging.WARNING, __file__, 1, text, values, caught)
    line = JsonFormatter({"broker": "broker-a"}).format(record)
    assert "\n" not in line
    parsed: dict[str, object] = json.loads(line)
    return parsed


@spec("O09")
def test_pairs_of_a_line_are_fields_and_numbers_stay_numbers() -> None:
    line = line_of("link: peer=%s closed times=%d 100%% reason=%r at %s", "10.0.0.1:7", 3, "it's gone", "now")
    assert line["message"] == 'link: peer=10.0.0.1:7 closed times=3 100% reason="it\'s gone" at now'
    assert line["fields"] == {"peer": "10.0.0.1:7", "times": 3, "reason": "it's gone"}
    assert (line["level"], line["logger"], line["broker"]) == ("WARNING", "tandemq.x", "broker-a")
    assert str(line["time"]).endswith("Z")


@spec("O09")
def test_text_of_clients_makes_neither_a_new_line_nor_a_long_one() -> None:
    line = line_of("request: key=%s", 'a"\n{"level":"ERROR"}' + "x" * 100_000)
    assert len(str(line["message"])) <= LINE_CHARACTERS_MAX + 100
    assert line["level"] == "WARNING"


def test_traceback_is_part_of_the_line() -> None:
    assert str(line_of("broken", error=TypeError("of a kind"))["traceback"]) == "TypeError: of a kind"


def test_line_without_values_or_with_too_few_is_a_message_only() -> None:
    assert "fields" not in line_of("store: opened")


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="use one of text, json"):
        load_broker_config("logFormat=xml", path="broker.conf", warn=print)


EVIL = "a\r\n2026-01-01 ERROR forged\x1b[2J\x9b2J\u2028b\x00"


def test_text_of_clients_forges_no_line_and_controls_no_terminal() -> None:
    record = logging.makeLogRecord({"msg": "group=%s", "args": (EVIL,), "levelname": "INFO"})
    text = BoundedFormatter("%(levelname)s %(message)s").format(record)
    as_json = JsonFormatter({}).format(record)
    assert text.isprintable() and as_json.isprintable()
    assert text.startswith("INFO group=a\\u000d\\u000a2026-01-01 ERROR forged\\u001b[2J")
    assert json.loads(as_json)["fields"] == {"group": EVIL}


def test_traceback_keeps_its_lines() -> None:
    record = logging.makeLogRecord({"msg": "broken", "exc_info": (ValueError, ValueError("x"), None)})
    assert BoundedFormatter("%(message)s").format(record) == "broken\nValueError: x"
