"""Count the words of documentation that people write: `python3 -m tools.doc_words [--json]`.

The pages at the root and under docs/, counted like `wc -w`, code included. Pages that `tools.reference` writes from the
code do not count, nor what `make release-gate` writes.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NAMES = ("codes", "commands", "console-api", "histories", "metrics", "settings", "spark-options", "tests")
GENERATED = frozenset(f"docs/reference/{name}.md" for name in _NAMES)
"""Pages that `make reference` and `make docs` write; git ignores them."""
_OF_RUNS = "docs/internals/release-gate.md"
"""The page that `make release-gate` writes."""
_SECTION_OF_RUNS = re.compile(r"^### Under faults\n.*?(?=^#)", re.MULTILINE | re.DOTALL)
"""The section of the README that it writes."""


def words_by_page(root: Path = ROOT) -> dict[str, int]:
    """Return the number of words of each page written by hand, the longest page first."""
    paths = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    found = {name: len(_SECTION_OF_RUNS.sub("", text).split()) for name, text in texts.items()}
    return {
        name: words
        for name, words in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        if name not in GENERATED and name != _OF_RUNS
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the words of each page and their sum."""
    parser = argparse.ArgumentParser(prog="tools.doc_words", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print an object of words by page")
    args = parser.parse_args(arguments)
    found = words_by_page()
    if args.json:
        print(json.dumps(found))
        return 0
    for name, words in found.items():
        print(f"{words:7,}  {name}")
    print(f"{sum(found.values()):7,}  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
