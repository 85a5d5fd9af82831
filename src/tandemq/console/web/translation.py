"""Translations of the console's pages: the source has English texts, i18n/<language>.json those of other languages.

A text has placeholders in braces, as "{count} groups". Messages of brokers and of the client are not translated.
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


def translate(language: str, text: str, /, **values: object) -> str:
    """Return a text in a language, with its placeholders filled; in English if there is no translation."""
    found = catalogue(language).get(text, text) if language in LANGUAGES else text
    return found.format(**values) if values else found


def say(language: str, phrase: Phrase) -> str:
    """Return a phrase in a language; its values may be phrases, or tuples of phrases."""
    return translate(language, phrase.text, **{name: _value(language, value) for name, value in phrase.values.items()})


def _value(language: str, value: object) -> object:
    if isinstance(value, Phrase):
        return say(language, value)
    if isinstance(value, tuple):
        return "; ".join(str(_value(language, part)) for part in value)
    return value


def preferred(header: str) -> str:
    """Return the language of the console that an Accept-Language header prefers; English if it names none."""
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
