"""Commands of a documentation page, with a test's paths and addresses."""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Page:
    """A page of the documentation."""

    def __init__(self, path: str) -> None:
        """`path`: below the root of the repository."""
        self._text = (ROOT / path).read_text(encoding="utf-8")

    def blocks(self, heading: str, kind: str = "sh") -> list[str]:
        """Return the blocks of a kind below a heading of the second level, up to the next one."""
        _, found, rest = self._text.partition(f"\n## {heading}\n")
        assert found, f"the page has no section {heading!r}"
        return [text for language, text in _BLOCK.findall(rest.partition("\n## ")[0]) if language == kind]

    def replaced(self, text: str, values: Mapping[str, object]) -> str:
        """Return a text with documented values replaced; each must occur in the page, so that none is forgotten."""
        for documented, value in values.items():
            assert documented in self._text, f"the page does not have {documented!r}"
            text = text.replace(documented, str(value))
        return text
