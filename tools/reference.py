"""Pages of docs/reference that are written from the code: python -m tools.reference [--check].

    commands.md     every command of the command line with its arguments and options, from click

`make reference` writes them; tests/test_docs.py fails when a page differs from what the code says.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from tandemq.cli import main as command_line

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


def commands_page() -> str:
    """Return the page of commands as Markdown."""
    lines = [
        "# Commands",
        "",
        "Every command of `tandemq`, as `--help` describes it. Made from the code by `make reference`; do not edit.",
        "When to use which, exit codes and examples: [operations](../guides/operations.md). All take `--help`;",
        "the tables leave it out.",
    ]
    for path, command in leaf_commands(command_line, "tandemq"):
        lines += ["", f"## {path}", *_describe(path, command)]
    return "\n".join(lines) + "\n"


def leaf_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield (words, command) for each visible command that does something itself, sorted by name within its group."""
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from leaf_commands(child, f"{path} {name}")
    else:
        yield path, command


def _describe(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield from ("", "```text", " ".join([path, *command.collect_usage_pieces(context)]), "```")
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        yield from ("", _escape(" ".join(paragraph.split())))
    rows = [
        row
        for parameter in command.get_params(context)
        if "--help" not in parameter.opts and (row := parameter.get_help_record(context)) and row[1]
    ]
    if rows:
        yield from ("", "| Option | Meaning |", "|---|---|")
        yield from (f"| `{names.replace('|', chr(92) + '|')}` | {_escape(text)} |" for names, text in rows)


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is, also in a table."""
    for character in "\\`*_<[|":
        text = text.replace(character, f"\\{character}")
    return text


PAGES: dict[str, Callable[[], str]] = {"commands.md": commands_page}


def stale_pages() -> list[str]:
    """Return the names of the pages that differ from what the code says."""
    return [name for name, make in PAGES.items() if _read(REFERENCE / name) != make()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    """Write the pages; with --check only compare them: exit code 1 if one is stale."""
    stale = stale_pages()
    for name in stale:
        if "--check" in sys.argv[1:]:
            print(f"docs/reference/{name} differs from the code: run `make reference`")
        else:
            (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")
            print(f"docs/reference/{name} written")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
