"""Transcripts: commands above a `----`, their results below; blocks are separated by empty lines, `#` begins a remark.

    send master 3
    ----
    SEND_OK queue offsets 0..2

A test runs the commands and compares the results; `pytest … --rewrite` updates the transcripts; review the diff.
"""

import re
from collections.abc import Callable
from pathlib import Path


def replay(text: str, run: Callable[[str], list[str]]) -> str:
    """Run a script and return it with the actual results. `run`: runs one command and returns its results, in lines."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        commands = [line for line in block.split("----")[0].strip().splitlines() if line]
        if all(line.startswith("#") for line in commands):
            blocks.append(block)
            continue
        results = [line for command in commands if not command.startswith("#") for line in run(command)]
        blocks.append("\n".join([*commands, "----", *results]))
    return "\n\n".join(blocks) + "\n"


def parse(line: str) -> tuple[str, list[str], dict[str, str]]:
    """Split a command into its name, its words, and its pairs `name=value`."""
    name, *words = line.split()
    return name, [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)


def check(script: Path, run: Callable[[str], list[str]], *, rewrites: bool) -> None:
    """Assert that a script has the actual results, or write them to it."""
    text = script.read_text(encoding="utf-8")
    actual = replay(text, run)
    if rewrites:
        script.write_text(actual, encoding="utf-8")
    else:
        assert actual == text
