"""A transcript: commands above a `----`, what followed below; blocks are separated by empty lines, `#` begins a remark.

    send master 3
    ----
    SEND_OK queue offsets 0..2

Whoever tells a story runs its commands and says what was noticed; `pytest … --rewrite` writes the transcripts anew, and
the diff is then read by somebody.
"""

import re
from collections.abc import Callable
from pathlib import Path


def replay(text: str, run: Callable[[str], list[str]]) -> str:
    """The script with the transcript as it really is. `run` does one command and tells what followed."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        commands = [line for line in block.split("----")[0].strip().splitlines() if line]
        if all(line.startswith("#") for line in commands):
            blocks.append(block)
            continue
        said = [line for command in commands if not command.startswith("#") for line in run(command)]
        blocks.append("\n".join([*commands, "----", *said]))
    return "\n\n".join(blocks) + "\n"


def parse(line: str) -> tuple[str, list[str], dict[str, str]]:
    """A command: its name, its words, and its pairs `name=value`."""
    name, *words = line.split()
    return name, [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)


def check(script: Path, run: Callable[[str], list[str]], *, rewrites: bool) -> None:
    """The script tells the story that happens, or is written anew."""
    text = script.read_text(encoding="utf-8")
    found = replay(text, run)
    if rewrites:
        script.write_text(found, encoding="utf-8")
    else:
        assert found == text
