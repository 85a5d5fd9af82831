"""What browsers get: htmx as it was published, nothing inline, nothing from other hosts."""

import hashlib
import re
from pathlib import Path

from tandemq.console.web.render import STATIC

TEMPLATES = STATIC.parent / "templates"
PUBLISHED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
}
"""SHA-256 of dist/htmx.min.js and dist/ext/hx-sse.min.js of the npm package htmx.org 4.0.1."""


def templates() -> list[Path]:
    found = sorted(TEMPLATES.glob("*.html"))
    assert found
    return found


def test_htmx_is_as_published_and_has_its_licence() -> None:
    scripts = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.glob("*.js")}
    assert scripts == PUBLISHED
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text(encoding="utf-8")


def test_templates_have_nothing_inline_and_nothing_from_elsewhere() -> None:
    for path in templates():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script>|hx-on|\bjs:|hx-vals|\|\s*safe\b", text), (
            path.name
        )
        assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", text), path.name


def test_every_form_that_changes_something_has_the_token() -> None:
    public = {"login.html", "setup.html"}
    for path in templates():
        for form in re.findall(r'<form method="post".*?</form>', path.read_text(encoding="utf-8"), re.DOTALL):
            assert path.name in public or "csrf" in form, path.name


def test_styles_are_small_and_refer_to_nothing() -> None:
    styles = (STATIC / "console.css").read_text(encoding="utf-8")
    assert len(styles) < 20_000
    assert "url(" not in styles and "@import" not in styles
