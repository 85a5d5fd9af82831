"""Commands of docs/guides/pipeline-clusters.md, with a test's paths and addresses."""

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "pipeline-clusters.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(heading: str, kind: str = "sh") -> list[str]:
    """Return the blocks of a kind below a heading of the page, up to the next one."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"the page has no section {heading!r}"
    return [text for language, text in _BLOCK.findall(rest.partition("\n## ")[0]) if language == kind]


def replaced(text: str, values: Mapping[str, object]) -> str:
    """Return a text with documented values replaced; each must occur in the page, so that none is forgotten."""
    page = PAGE.read_text(encoding="utf-8")
    for documented, value in values.items():
        assert documented in page, f"the page does not have {documented!r}"
        text = text.replace(documented, str(value))
    return text
