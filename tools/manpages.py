"""Manual pages of the command line: python -m tools.manpages DIR.

One page per command, made from click: DIR/tandemq.1, DIR/tandemq-topic.1, DIR/tandemq-topic-create.1, … They are for
packages, and not committed. SOURCE_DATE_EPOCH, if set, is their date, so that a build can be repeated.

Source: man-pages(7), groff_man(7).
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from inspect import cleandoc
from pathlib import Path

import click

from tandemq import __version__
from tandemq.cli import main as command_line

_EXIT_CODES = (
    ("0", "done"),
    ("1", "failed; standard error has the reason"),
    ("2", "wrong usage or configuration; nothing was done"),
    ("3", "a check found faults"),
    ("130", "interrupted"),
)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each page."""
    for words, command in commands(command_line, ("tandemq",)):
        yield f"{'-'.join(words)}.1", page(words, command)


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each visible command with its words, groups included."""
    yield words, command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from commands(child, (*words, name))


def page(words: Sequence[str], command: click.Command) -> str:
    """Return the page of a command as roff."""
    context = click.Context(command, info_name=" ".join(words), help_option_names=["-h", "--help"])
    name = "-".join(words)
    title = " ".join(map(quoted, (name.upper(), "1", _date(), f"TandemQ {__version__}", "TandemQ")))
    return "\n".join(
        [
            f".TH {title}",
            ".SH NAME",
            f"{escaped(name)} \\- {escaped(_summary(command))}",
            ".SH SYNOPSIS",
            f".B {escaped(' '.join(words))}",
            *(escaped(piece) for piece in command.collect_usage_pieces(context)),
            ".SH DESCRIPTION",
            *_description(cleandoc(command.help or "")),
            *_options(command, context),
            *_children(words, command),
            ".SH EXIT STATUS",
            *(line for code, meaning in _EXIT_CODES for line in (".TP", f".B {code}", escaped(meaning))),
            *_see_also(words),
            "",
        ]
    )


def _date() -> str:
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(seconds), UTC) if seconds else datetime.now(UTC)
    return f"{moment:%Y-%m-%d}"


def _summary(command: click.Command) -> str:
    """Return the first sentence of a help text."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)])\. ", text)[0].removesuffix(".")


def _description(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *(escaped(line) for line in paragraph.splitlines()[1:] if line), ".fi")
        else:
            yield escaped(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) and record[1]
    ]
    if records:
        yield ".SH OPTIONS"
    for names, text in records:
        yield from (".TP", f".B {escaped(names)}", escaped(" ".join(text.split())))


def _children(words: Sequence[str], command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from (".TP", f".BR {escaped('-'.join((*words, name)))} (1)", escaped(_summary(child)))


def _see_also(words: Sequence[str]) -> Iterator[str]:
    if len(words) > 1:
        yield ".SH SEE ALSO"
        yield f".BR {escaped('-'.join(words[:-1]))} (1)"


def escaped(text: str) -> str:
    """Return text that roff shows as it is: backslashes, hyphens, and a first character that would be a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    text = text.replace("`", "\\(ga").replace("~", "\\(ti").replace('"', "\\(dq")
    text = "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text)
    return f"\\&{text}" if text.startswith(".") else text


def quoted(text: str) -> str:
    """Return one argument of a request."""
    return f'"{escaped(text)}"'


def main(words: Sequence[str]) -> int:
    """Write the pages into the directory that is given."""
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m tools.manpages DIR\n\nWrites the manual pages of all commands, tandemq*.1, into DIR.")
        return 0 if words in (["--help"], ["-h"]) else 2
    directory = Path(words[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
