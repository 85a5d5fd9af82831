"""Count the lines of source that hold code: `python3 -m tools.code_lines [--json] [DIRECTORY]`.

A line counts if a token of code stands on it: no comment, no blank, no docstring or other string that is a statement of
its own. Python and Cython files, by package.
"""

import argparse
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tandemq"
SUFFIXES = {".py", ".pyx", ".pxi"}
_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def code_lines(path: Path) -> int:
    """Return the number of lines of a file that hold code."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in _LAYOUT:
                continue
            if token.type != tokenize.NEWLINE:
                statement.append(token)
                continue
            if any(part.type != tokenize.STRING for part in statement):
                lines.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
            statement = []
    return len(lines)


def by_package(directory: Path) -> Counter[str]:
    """Return the lines of code in each package or module of a directory."""
    found: Counter[str] = Counter()
    for path in sorted(directory.rglob("*")):
        if path.suffix in SUFFIXES:
            found[path.relative_to(directory).parts[0]] += code_lines(path)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the count of each package, the largest first, and the sum."""
    parser = argparse.ArgumentParser(prog="tools.code_lines", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=SOURCE, help="default: src/tandemq")
    parser.add_argument("--json", action="store_true", help="print an object of lines by package")
    args = parser.parse_args(arguments)
    if not args.directory.is_dir():
        parser.error(f"{args.directory} is no directory")
    found = by_package(args.directory)
    if args.json:
        print(json.dumps(dict(found.most_common())))
        return 0
    for name, lines in found.most_common():
        print(f"{lines:7,}  {name}")
    print(f"{found.total():7,}  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
