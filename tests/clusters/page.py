"""Commands of docs/guides/pipeline-clusters.md."""

from tests.pages import Page

_PAGE = Page("docs/guides/pipeline-clusters.md")
blocks, replaced = _PAGE.blocks, _PAGE.replaced
