"""Translations: the texts of pages are English in the source; i18n/<language>.json has them in other languages.

A text has placeholders in braces, as "{count} groups". What brokers and the client report stays English.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

LANGUAGES = {"en": "English", "zh": "中文"}
_DIRECTORY = Path(__file__).parent.parent / "i18n"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text to translate, and the values of its placeholders."""

    text: str
    values: Mapping[str, object] = field(default_factory=dict)


@cache
def catalogue(language: str) -> dict[str, str]:
    """Return the translations of a language; {} for English."""
    file = _DIRECTORY / f"{language}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if language != "en" else {}


def translate(language: str, text: str, **values: object) -> str:
    """Return a text in a language, with its values; in English if it is not translated."""
    found = catalogue(language).get(text, text) if language in LANGUAGES else text
    return found.format(**values) if values else found


def say(language: str, phrase: Phrase) -> str:
    """Return a phrase in a language; phrases among its values are translated too."""
    return translate(language, phrase.text, **{name: _value(language, value) for name, value in phrase.values.items()})


def _value(language: str, value: object) -> object:
    if isinstance(value, Phrase):
        return say(language, value)
    if isinstance(value, tuple):
        return "; ".join(str(_value(language, each)) for each in value)
    return value


def preferred(header: str) -> str:
    """Return the first known language of an Accept-Language header."""
    weighted = []
    for part in header[:500].split(","):
        tag, _, weight = part.replace(" ", "").partition(";q=")
        try:
            weighted.append((float(weight or 1), tag.lower().split("-")[0]))
        except ValueError:
            continue
    for quality, tag in sorted(weighted, key=lambda item: -item[0]):
        if tag in LANGUAGES and quality > 0:
            return tag
    return "en"
