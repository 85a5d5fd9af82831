"""Format of log lines: text for people, or one JSON object per line (`logFormat=json`).

    {"time":"2026-11-25T12:00:00.123Z","level":"INFO","logger":"tandemq.broker.ha.registration",
     "message":"registration: name_server=127.0.0.1:9876 registered as broker-a id=0 at 127.0.0.1:10911",
     "fields":{"name_server":"127.0.0.1:9876","id":0},"broker":"broker-a","broker_id":0}

Fields are the `name=value` pairs of the line. Clients choose parts of lines: texts are cut to LINE_CHARACTERS_MAX, and
control characters are escaped, so that a line stays one line and does nothing to a terminal.
Source: docs/guides/monitoring.md.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tandemq.model.text import brief

LINE_CHARACTERS_MAX = 8_192
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Control characters, and the separators that end a line for some programs."""
_CONVERSION = re.compile(r"(?:\b([A-Za-z_]\w*)=['\"]?)?%(?:%|[-#0 +]*[0-9]*(?:\.[0-9]+)?[sdrfxg])")


class BoundedFormatter(logging.Formatter):
    """Formatter that truncates log lines to `LINE_CHARACTERS_MAX`, as they may contain text of clients; tracebacks are
    not truncated."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  # overridden
        """Return the time in this machine's time zone, which the text names."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # overridden
        """Return the line without traceback."""
        line = super().formatMessage(record)
        return brief(line if line.isprintable() else line.translate(_CONTROLS), LINE_CHARACTERS_MAX)


class JsonFormatter(logging.Formatter):
    """Formatter of JSON lines."""

    def __init__(self, constant: Mapping[str, object]) -> None:
        """`constant`: fields of every line, such as the broker's name."""
        super().__init__()
        self._constant = dict(constant)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, its traceback included."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": brief(record.getMessage(), LINE_CHARACTERS_MAX),
        }
        fields = dict(_fields(record))
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | self._constant, ensure_ascii=False).translate(_CONTROLS)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the values that a line has behind `name=`; numbers stay numbers."""
    values = record.args if isinstance(record.args, tuple) else ()
    index = 0
    for found in _CONVERSION.finditer(str(record.msg)):
        if found[0].endswith("%%"):
            continue
        if index >= len(values):
            return
        if found[1]:
            value = values[index]
            yield found[1], value if isinstance(value, int | float) else brief(str(value), LINE_CHARACTERS_MAX)
        index += 1


def use_name(name: str) -> None:
    """Log lines of text with a name from now on: several processes write to one stream."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(BoundedFormatter(f"%(asctime)s %(levelname)s {name.replace('%', '%%')}: %(message)s"))


def use_json(constant: Mapping[str, object]) -> None:
    """Log JSON lines from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(constant))
