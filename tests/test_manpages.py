"""Manual pages made from the command line: one per command, complete, and roff that shows each character."""

import re
from pathlib import Path

import pytest

from tandemq.cli import main as command_line
from tools import manpages


def test_each_command_has_a_page_with_its_options(tmp_path: Path) -> None:
    assert manpages.main([str(tmp_path)]) == 0
    found = {path.name for path in tmp_path.iterdir()}
    assert {"tandemq.1", "tandemq-topic.1", "tandemq-topic-create.1", "tandemq-ha-config-set.1"} <= found
    for words, command in manpages.commands(command_line, ("tandemq",)):
        text = (tmp_path / f"{'-'.join(words)}.1").read_text(encoding="utf-8")
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"):
            assert f"\n.SH {section}\n" in text, words
        for parameter in command.params:
            if parameter.opts[0].startswith("--"):
                assert parameter.opts[0].replace("-", "\\-") in text, (words, parameter.opts)
        name, summary = re.findall(r"\.SH NAME\n(\S+) \\- (.+)\n", text)[0]
        assert name.replace("\\-", "-") == "-".join(words) and summary


def test_pages_have_only_requests_that_man_knows_and_no_bare_hyphens() -> None:
    for name, text in manpages.pages():
        requests = set(re.findall(r"^\.(\w+)", text, re.MULTILINE))
        assert requests <= {"TH", "SH", "TP", "B", "BR", "PP", "nf", "fi"}, name
        assert "\n\n" not in text.strip(), name
        assert not re.search(r"(?<!\\)-", text), name
        assert not re.search(r"^'", text, re.MULTILINE), name


def test_pages_name_groups_of_commands_and_each_other() -> None:
    found = dict(manpages.pages())
    assert ".BR tandemq\\-topic\\-create (1)\nCreate or change the topic NAME" in found["tandemq-topic.1"]
    assert ".SH SEE ALSO\n.BR tandemq\\-topic (1)" in found["tandemq-topic-create.1"]


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        ("--set a=b", "\\-\\-set a=b"),
        (".conf", "\\&.conf"),
        ("C:\\x", "C:\\ex"),
        ("it's `x` ~ ^", "it\\(aqs \\(gax\\(ga \\(ti \\(ha"),
        ("ID,KEY=VALUE…", "ID,KEY=VALUE\\[u2026]"),
        ('say "x"', "say \\(dqx\\(dq"),
    ],
)
def test_text_is_shown_as_it_is(text: str, roff: str) -> None:
    assert manpages.escaped(text) == roff


def test_date_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert next(manpages.pages())[1].splitlines()[0].startswith('.TH "TANDEMQ" "1" "1970\\-01\\-02" "TandemQ ')


def test_wrong_usage_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert (manpages.main(["--help"]), manpages.main([]), manpages.main(["a", "b"])) == (0, 2, 2)
    assert capsys.readouterr().out.count("usage: python -m tools.manpages DIR") == 3
