"""The documentation is checked like code: what exists is described, and what is described exists.

Make targets, commands of the command line with their options, settings with their defaults, links and anchors.
Source: CONTRIBUTING.md.
"""

import importlib
import importlib.util
import pydoc
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import tandemq
from tandemq.model.codes import RequestCode
from tests.interop.mqadmin_rows import verdicts
from tools import doc_words, picture, reference
from tools.reference import leaf_commands

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "sh", "bash", "shell", "console"}
GENERATED = {reference.REFERENCE / name: make for name, make in reference.PAGES.items()}
WORDS_MAX = 80_000


@cache
def pages() -> tuple[Path, ...]:
    """Return all pages of documentation: those at the root and those under docs/, examples/ and bench/.

    Pages that are written from the code are among them, whether they have been written or not.
    """
    found = {*ROOT.glob("*.md"), *GENERATED}
    for directory in ("docs", "examples", "bench"):
        found.update((ROOT / directory).rglob("*.md"))
    return tuple(sorted(found))


@cache
def text_of(page: Path) -> str:
    """Return the text of a page, of a generated one as the code is now."""
    return GENERATED[page]() if page in GENERATED else page.read_text(encoding="utf-8")


@cache
def all_text() -> str:
    """Return every page, one after the other."""
    return "\n".join(text_of(page) for page in pages())


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that the headings of a page make: lower case, words joined by dashes."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


# --- layout


def joined_lines(text: str) -> Iterator[str]:
    """Yield lines without a blank one between them and a heading, a fence or a table, which Markdown then misreads."""
    is_code, before = False, ""
    for line in text.splitlines():
        is_fence = line.startswith("```")
        is_joined = line.startswith(("#", "```")) or before.startswith(("#", "```"))
        is_joined = is_joined or (before.startswith("|") and not line.startswith("|"))
        if not is_code and is_joined and before.strip() and line.strip():
            yield line
        is_code = is_code != is_fence
        before = line


def test_headings_tables_and_code_stand_apart() -> None:
    assert not [f"{page.name}: {line}" for page in pages() for line in joined_lines(text_of(page))]


def test_layout_check_sees_joined_lines() -> None:
    page = "# One\ntext\n\n| a |\n|---|\nmore\n## Two\n\n```sh\n# a comment\n```\nend\n"
    assert list(joined_lines(page)) == ["text", "more", "## Two", "end"]


# --- links


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead to no file, or to no heading; addresses of the web are left alone."""
    text = re.sub(r"`[^`\n]*`", "", text_of(page))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_there = target.exists() or target in GENERATED
        if not is_there or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            yield f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name}: {link}"


def test_links_between_pages_resolve() -> None:
    assert pages()
    assert not [link for page in pages() for link in broken_links(page)]


def test_link_check_sees_missing_files_and_missing_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](other.md) [b](#one-heading) [c](#two) [d](https://example.org/x)\n")
    assert [link.split(": ")[1] for link in broken_links(page)] == ["other.md", "#two"]


def missing_paths(text: str) -> list[str]:
    """Return the paths of src/tandemq and lab that a page names in backticks or in its tree and that do not exist."""
    source = ROOT / "src" / "tandemq"
    packages = "|".join(path.name for path in source.iterdir() if path.is_dir() and path.name != "__pycache__")
    named = re.findall(rf"`((?:{packages})/[\w/]+(?:\.py)?)`", text)
    beside = re.findall(r"(?:^|`)(lab/[\w/]+(?:\.py)?)", text, re.MULTILINE)
    tree = re.split(r"^lab/|```", text.partition("src/tandemq/\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    above = ""
    for line in tree.splitlines():
        indent, names = re.match(r"( *)((?:[\w.]+/? )+)", f"{line} ").groups()  # type: ignore[union-attr]
        names = " ".join(re.findall(r"^(?:[\w.]+/|[\w]+\.py)(?: [\w.]+/)*", names))
        above = names.rstrip("/") if len(indent) == 2 else above
        named += [name.rstrip("/") if len(indent) == 2 else f"{above}/{name.rstrip('/')}" for name in names.split()]
    paths = [*((source, name) for name in named), *((ROOT, name) for name in beside)]
    return [name for root, name in paths if not (root / name).exists() and not (root / f"{name}.py").exists()]


def test_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert missing_paths(text) == []
    tree = "src/tandemq/\n  broker/  one\n    gone/  two\nlab/past/  three\n```"
    missing = missing_paths(f"`broker/nothing.py`, `lab/sim/nothing.py` {tree}")
    assert missing == ["broker/nothing.py", "broker/gone", "lab/sim/nothing.py", "lab/past/"]


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert not [p.name for p in (DOCS / "decisions").glob("0*.md") if f"({p.name})" not in listed]


_CITED = re.compile(r"(docs/[\w./-]+\.md|ARCHITECTURE\.md)((?:, \"[^\"]+\")*)")


def wrong_citations(source: str) -> Iterator[str]:
    """Yield the pages, and the headings behind them, that a source names and that are not there.

    A heading is cited by any part of it, in any case, with or without the page's markup.
    """
    for name, quoted in _CITED.findall(re.sub(r"\s*\n\s*", " ", source)):
        page = ROOT / name
        if not page.is_file() and page not in GENERATED:
            yield name
            continue
        titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
        for heading in re.findall(r'"([^"]+)"', quoted):
            if not any(heading.lower() in title.lower() for title in titles):
                yield f"{name}, {heading}"


def test_pages_and_headings_cited_in_source_exist() -> None:
    sources = [p for directory in ("src", "lab", "bench", "chaos", "judge") for p in (ROOT / directory).rglob("*.py")]
    assert sources
    assert not [f"{p.relative_to(ROOT)}: {it}" for p in sources for it in wrong_citations(p.read_text("utf-8"))]


def test_citation_check_sees_missing_pages_and_missing_headings() -> None:
    source = 'Source: docs/internals/ha.md, "configuration",\n"of dreams"; docs/none.md; ARCHITECTURE.md.'
    assert list(wrong_citations(source)) == ["docs/internals/ha.md, of dreams", "docs/none.md"]


# --- make


@cache
def make_targets() -> frozenset[str]:
    """Return the targets that the Makefile calls phony: those for people."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(name for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for name in line.split())


def test_every_make_target_is_documented_and_helps_itself() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md"))
    for target in sorted(make_targets()):
        assert re.search(rf"^{target}:.*## \S", makefile, re.MULTILINE), f"`make help` does not tell of {target}"
        assert target == "all" or re.search(rf"`make {target}\b", told), f"no page tells of `make {target}`"


def test_make_commands_in_pages_exist() -> None:
    told = set(re.findall(r"`make ([a-z-]+)", all_text()))
    told |= {words[1] for words in shell_commands() if words[0] == "make" and len(words) > 1}
    assert told - make_targets() == set()


# --- the command line


@cache
def root_command() -> click.Command:
    """Return the command line as click sees it."""
    command = importlib.import_module("tandemq.cli").main
    assert isinstance(command, click.Command)
    return command


def unknown_in(words: list[str]) -> str | None:
    """Say what in a typed `tandemq …` line does not exist: a command or an option; None if all does."""
    command, rest = root_command(), words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        child = command.commands.get(rest[0])
        if child is None:
            return f"{' '.join(words)}: no command {rest[0]!r}"
        command, rest = child, rest[1:]
    known = {"--help", "--json", "--version"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    for word in rest:
        option = word.split("=")[0]
        if re.match(r"--?[a-z]", option) and option not in known:
            return f"{' '.join(words)}: no option {option!r}"
    return None


@cache
def shell_commands() -> tuple[tuple[str, ...], ...]:
    """Return the command lines in fenced blocks of all pages, as words; prompts and comments taken off."""
    lines = []
    for language, block in _FENCE.findall(all_text()):
        if language not in _SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            typed = line.removeprefix("$ ")
            if re.match(r"(?:\.venv/bin/)?(?:tandemq|make|python -m) ", typed):
                lines.append(tuple(shlex.split(re.split(r"\s[|&>]|;", typed)[0], comments=True)))
    return tuple(words for words in lines if words)


def test_every_command_is_documented() -> None:
    leaves = list(leaf_commands(root_command(), "tandemq"))
    assert leaves
    assert not [path for path, _ in leaves if not re.search(rf"{re.escape(path)}\b", all_text())]


def test_every_command_and_option_says_what_it_is() -> None:
    silent = []
    for path, command in leaf_commands(root_command(), "tandemq"):
        if not command.help:
            silent.append(path)
        silent += [f"{path} {p.opts[0]}" for p in command.params if isinstance(p, click.Option) and not p.help]
    assert not silent


def test_typed_commands_exist() -> None:
    typed = [list(words) for words in shell_commands() if words[0].endswith("tandemq")]
    assert not [problem for words in typed if (problem := unknown_in(words))]


def test_typed_commands_check_sees_unknown_commands_and_options() -> None:
    assert unknown_in(["tandemq", "fly"])
    assert unknown_in(["tandemq", "--wings"])


def test_typed_modules_exist() -> None:
    modules = [words[2] for words in shell_commands() if words[0].endswith("python") and words[1] == "-m"]
    assert not [m for m in modules if importlib.util.find_spec(m) is None]


# --- pages written from the code


def test_everything_on_pages_written_from_the_code_has_a_description() -> None:
    assert list(reference.undescribed()) == []


def test_row_without_a_description_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "| Key | Meaning |\n|---|---|\n| `a` | what it is |\n| `b` |  |\n"
    monkeypatch.setattr(reference, "PAGES", {"settings.md": lambda: page})
    assert list(reference.undescribed()) == ["settings.md: | `b` |  |"]


def test_pages_written_from_the_code_are_not_committed_and_not_counted() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in GENERATED}
    assert names == doc_words.GENERATED
    assert {f"/{name}" for name in names} <= set((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())


def test_pages_of_the_root_link_to_no_page_that_is_not_committed() -> None:
    for page in ROOT.glob("*.md"):
        targets = {ROOT / link.partition("#")[0] for link in _LINK.findall(text_of(page))}
        assert targets.isdisjoint(GENERATED), page.name


# --- length


def test_pages_written_by_hand_are_short_enough_to_read() -> None:
    assert sum(doc_words.words_by_page().values()) <= WORDS_MAX, "python3 -m tools.doc_words lists the pages by length"


def test_words_are_counted_by_page_without_pages_written_from_the_code(tmp_path: Path) -> None:
    for name in ("README.md", "docs/guides/one.md", "docs/reference/settings.md", "examples/left-out.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Three words\n", encoding="utf-8")
    (tmp_path / "docs" / "guides" / "one.md").write_text("# One\n```sh\nmake x\n```\n", encoding="utf-8")
    assert list(doc_words.words_by_page(tmp_path).items()) == [("docs/guides/one.md", 6), ("README.md", 3)]


# --- the picture


def test_architecture_picture_is_drawn_from_its_description() -> None:
    assert not picture.is_stale(), "run `make reference`"


def test_picture_that_differs_from_its_description_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "DRAWING", tmp_path / "architecture.svg")
    assert picture.is_stale()
    description = picture.SOURCE.read_text(encoding="utf-8")
    picture.DRAWING.write_text(picture.draw(description), encoding="utf-8")
    assert not picture.is_stale()
    picture.DRAWING.write_text(picture.draw(description.replace("Master", "Leader")), encoding="utf-8")
    assert picture.is_stale()


@pytest.mark.parametrize("line", ["circle a 1 2", "box a 1 2 | no size", "arrow a.n b.s | from nowhere"])
def test_picture_refuses_what_it_cannot_draw(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        picture.draw(line)


def test_readme_and_index_show_the_picture() -> None:
    for page, path in (("README.md", "docs/assets/architecture.svg"), ("docs/index.md", "assets/architecture.svg")):
        assert f"]({path})" in (ROOT / page).read_text(encoding="utf-8")


# --- the site


def test_every_page_under_docs_is_on_the_site_and_in_the_index() -> None:
    nav = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    found = [p.relative_to(DOCS).as_posix() for p in pages() if p.is_relative_to(DOCS)]
    pages_of_decisions = [name for name in found if re.match(r"decisions/\d", name)]
    assert not [name for name in found if f'"{name}"' not in nav and name not in pages_of_decisions]
    assert not [name for name in found if f"({name})" not in index and name not in {*pages_of_decisions, "index.md"}]


def test_public_names_are_on_the_page_of_the_api() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert not [name for name in tandemq.__all__ if f"::: tandemq.{name}\n" not in page]
    for named in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE):
        assert pydoc.locate(named) is not None, f"{named} does not exist"


# --- mqadmin


def test_every_command_of_mqadmin_is_documented_as_it_is_tested() -> None:
    page = (DOCS / "reference" / "mqadmin.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d., ]+) \| (`.*`) \|$", page, re.MULTILINE)
    listed = [(name, versions, verdict) for verdict, versions, names in rows for name in re.findall(r"`(\w+)`", names)]
    found = {name: (tuple(versions.split(", ")), verdict) for name, versions, verdict in listed}
    assert len(found) == len(listed)
    assert found == verdicts()


# --- request codes


def test_every_request_code_is_documented_by_number_and_name() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| \w.* \| \w.* \|$", reference.codes_page(), re.MULTILINE)
    assert {(int(number), name) for number, name in rows} == {(int(code), code.name) for code in RequestCode}
