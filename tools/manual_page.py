"""Print the manual page tandemq(1), made from the command line's own help: `python3 -m tools.manual_page`."""

import re
import sys
from collections.abc import Iterator

import click

from tandemq import __version__
from tandemq.cli import main as root


def escaped(text: str) -> str:
    """Return a text as roff shows it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of paragraphs of help."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.replace("\b", "").strip())):
        if number:
            yield ".PP"
        yield escaped(" ".join(paragraph.split()))


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it, with their full names."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands(command.commands[name], f"{path} {name}")


def section(path: str, command: click.Command) -> Iterator[str]:
    """Yield the lines about one command."""
    context = click.Context(command, info_name=path)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    yield f".SS {escaped(path)} {escaped(usage)}"
    yield from paragraphs(command.help or "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and parameter.name != "help":
            yield ".TP"
            yield f"\\fB{escaped(' '.join(record[0].split()))}\\fR"
            yield escaped(" ".join(record[1].split()))


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    assert isinstance(root, click.Command)
    yield f'.TH TANDEMQ 1 "" "TandemQ {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "tandemq \\- message broker compatible with Apache RocketMQ"
    yield ".SH SYNOPSIS"
    yield ".B tandemq"
    yield "[OPTIONS] COMMAND [ARGS]..."
    yield ".SH DESCRIPTION"
    yield from paragraphs(root.help or "")
    yield ".SH COMMANDS"
    for path, command in commands(root, "tandemq"):
        if command is not root and not command.hidden:
            yield from section(path, command)
    yield ".SH FILES"
    for name, text in (
        ("/etc/tandemq", "settings of brokers, the name server and the proxy"),
        ("/etc/default/tandemq", "environment and options of the services"),
        ("/var/lib/tandemq", "stores"),
    ):
        yield from (".TP", f".I {name}", escaped(text))


def main() -> int:
    """Print the page."""
    if len(sys.argv) > 1:
        print((__doc__ or "").strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    for line in page():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
