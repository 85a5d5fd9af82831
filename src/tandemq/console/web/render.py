"""Templates: Jinja2 with escaping always on, and the functions that templates may call."""

import hashlib
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tandemq import __version__
from tandemq.console.web.charts import Line, amount, chart, legend, table_rows
from tandemq.console.web.translation import LANGUAGES, Phrase, say, translate
from tandemq.console.web.words import language_of, rights, stage_of, topic_rights, word_of

_ROOT = Path(__file__).parent.parent
STATIC = _ROOT / "static"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_ROOT / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": time_text,
        "bytes": bytes_text,
        "duration": duration_text,
        "number": number_text,
        "amount": amount,
        "breaks": with_breaks,
        "seg": segment,
        "word": word_of,
        "stage": stage_of,
        "language": language_of,
        "rights": topic_rights,
    }
    environment.globals |= {
        "static": static_url,
        "query": query_text,
        "spark": sparkline,
        "chart": chart,
        "legend": legend,
        "line": Line,
        "rows_of": table_rows,
        "rights_of": rights,
        "LANGUAGES": LANGUAGES,
        "VERSION": __version__,
    }
    return environment


def render(template: str, language: str, values: Mapping[str, Any]) -> str:
    """Return a page or a part of one in a language."""

    def t(text: str, **placeholders: object) -> str:
        return translate(language, text, **placeholders)

    def phrase(sentence: Phrase) -> str:
        return say(language, sentence)

    return _environment().get_template(template).render({**values, "t": t, "phrase": phrase, "language": language})


def static_url(base: str, name: str) -> str:
    """Return the address of a static file, with a hash of its content, so that browsers may keep it for ever."""
    return f"{base}/static/{name}?v={_digest(name)}"


@cache
def _digest(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def segment(text: object) -> str:
    """Return a text as one segment of a path."""
    return quote(str(text), safe="")


def with_breaks(text: str) -> Markup:
    """Return a text that browsers may break behind its commas and slashes, as JSON has no spaces."""
    escaped = str(escape(text))
    return Markup(re.sub("([,/])", r"\1<wbr>", escaped))  # noqa: S704  # it is escaped


def query_text(**values: object) -> str:
    """Return values as the query of an address; without those that are empty."""
    return urlencode({name: str(value) for name, value in values.items() if value not in ("", None)})


def time_text(wall_ms: int | None) -> str:
    """Return a time, milliseconds since 1970, with its zone, UTC; "" for none."""
    if not wall_ms or wall_ms < 0 or wall_ms > 1 << 47:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall_ms / 1000)) + f".{wall_ms % 1000:03d} UTC"


def bytes_text(count: float | None) -> str:
    """Return a number of bytes with a unit."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration_text(ms: float | None) -> str:
    """Return a duration with a unit; "" if it is unknown."""
    if ms is None:
        return ""
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.0f} h"


def number_text(value: float | None) -> str:
    """Return a number with separators."""
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def sparkline(samples: list[int], title: str, width: int = 240, height: int = 40) -> Markup:
    """Return a line of values as SVG; the last one is at the right."""
    if len(samples) < 2:
        return Markup()
    highest = max(1, *samples)
    step = width / (len(samples) - 1)
    points = " ".join(
        f"{index * step:.1f},{height - 2 - value / highest * (height - 4):.1f}" for index, value in enumerate(samples)
    )
    return Markup(
        '<svg class="spark" role="img" viewBox="0 0 {w} {h}" width="{w}" height="{h}"><title>{title}</title>'
        '<polyline points="{points}"/></svg>'
    ).format(w=width, h=height, title=title, points=points)
