"""Languages of the pages: nothing is untranslated, and the account decides before the browser."""

import ast
import re
from collections.abc import Callable, Iterator
from string import Formatter

import pytest

from tandemq.client.admin.traces import TraceEvent
from tandemq.console.access.accounts import ROLES
from tandemq.console.cluster.failovers import PERMITTED
from tandemq.console.cluster.picture import BAD, OK, WARNING
from tandemq.console.cluster.topics_and_groups import kind_of
from tandemq.console.web import words
from tandemq.console.web.render import STATIC
from tandemq.console.web.translation import LANGUAGES, Phrase, catalogue, preferred, say, translate
from tandemq.model.quota import GROUP, TOPIC, USER
from tests.unit.console.conftest import Browser

SOURCE = STATIC.parent
OTHERS = sorted(set(LANGUAGES) - {"en"})
VALUES = {
    *(OK, WARNING, BAD),
    *ROLES,
    *PERMITTED.values(),
    *(
        word
        for table in (words.ROLES, words.MODES, words.BROKER_PERMISSIONS, words.STAGES, words.CODES)
        for word in table.values()
    ),
    *(USER, TOPIC, GROUP),
    *(event.value for event in TraceEvent),
    *("scrub", "audit"),
    *map(kind_of, ("T", "%RETRY%g", "%DLQ%g", "TBW102")),
    *("id", "role", "permission", "weight", "priority"),
    *("Refused", "Not found", "Failed", "Log in"),
}
"""Texts that templates translate from values, not from literals."""
ARGUMENTS = {"Phrase": 0, "NotFound": 0, "translate": 1, "confirmation": 1}
"""Functions whose literal argument at this position is translated."""


def texts() -> set[str]:
    """Return all texts of pages, in English."""
    found = set(VALUES)
    for path in (SOURCE / "templates").glob("*.html"):
        pairs = re.findall(r"""\bt\(\s*(?:"([^"]*)"|'([^']*)')""", path.read_text(encoding="utf-8"))
        found |= {double or single for double, single in pairs}
    for path in SOURCE.rglob("*.py"):
        found |= set(_literals(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def _literals(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            position = ARGUMENTS.get(name)
            if position is not None and len(node.args) > position:
                for one in ast.walk(node.args[position]) if name != "NotFound" else [node.args[position]]:
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield one.value
        # What `_read_form` returns is shown by `_failed`.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "_read_form":
            for one in ast.walk(node):
                if isinstance(one, ast.Return) and isinstance(one.value, ast.Constant) and one.value.value:
                    yield str(one.value.value)


def test_texts_are_found_in_templates_and_code() -> None:
    found = texts()
    assert {"Log in", "no active master", "{count} groups, all in sync", "there is no such topic"} <= found
    assert len(found) > 250


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_in_every_language_and_none_is_left_over(language: str) -> None:
    known = set(catalogue(language))
    assert texts() - known == set(), "without a translation"
    assert known - texts() == set(), "no longer used"


@pytest.mark.parametrize("language", OTHERS)
def test_placeholders_are_the_same_in_every_language(language: str) -> None:
    def placeholders(text: str) -> set[str]:
        return {name for _, name, _, _ in Formatter().parse(text) if name}

    for text, translated in catalogue(language).items():
        assert placeholders(text) == placeholders(translated), text


def test_phrases_within_phrases_are_translated() -> None:
    one = Phrase("{group}: {problems}, since {time} UTC ({age})", {"group": "g", "time": "t", "age": "1 s"})
    whole = Phrase(one.text, {**one.values, "problems": (Phrase("no active master"), Phrase("unknown"))})
    assert "没有活动的主节点; unknown" in say("zh", whole)
    assert translate("fr", "Save") == "Save"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB, zh;q=0.5", "en"),
        ("fr, de;q=0.9, zh-TW;q=0.3", "zh"),
        ("en;q=0.1, zh; q=0.7", "zh"),
        ("zh;q=0, fr;q=0.1", "en"),
        ("zh;q=nonsense", "en"),
    ],
)
def test_browser_names_the_language(header: str, language: str) -> None:
    assert preferred(header) == language


def test_account_decides_before_the_browser(browser_of: Callable[[str], Browser]) -> None:
    browser = browser_of("viewer")
    chinese = {"accept-language": "zh-CN"}
    page = browser.get("/", headers=chinese).text
    assert '<html lang="zh"' in page and "<h1>集群</h1>" in page and "1 个组" in page
    assert browser.post("/me", {"language": "en", "theme": ""}).status_code == 303
    assert "<h1>Cluster</h1>" in browser.get("/", headers=chinese).text
    assert browser.post("/me", {"language": "zh", "theme": ""}).status_code == 303
    assert "<h1>集群</h1>" in browser.get("/").text
    refused = browser.get("/users").text
    assert "已拒绝" in refused and "需要角色\uff1a管理员" in refused
