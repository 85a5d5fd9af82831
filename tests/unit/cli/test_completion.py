"""`tandemq completion`: scripts of shells, and the names that they complete."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tandemq.cli import main
from tandemq.cli.completion import rejoined
from tandemq.cli.support import name_completion
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

Complete = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return what Bash would offer for words of which the last one is incomplete."""

    def completed(*words: str) -> list[str]:

        from tandemq.cli import main

        monkeypatch.setenv("COMP_WORDS", " ".join(("tandemq", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_TANDEMQ_COMPLETE", "bash_complete")
        result = CliRunner().invoke(main, [], prog_name="tandemq")
        assert result.exit_code == 0 and result.stderr == "", result.output
        return [line.partition(",")[2] for line in result.stdout.splitlines() if line]

    return completed


@pytest.mark.system
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_a_shell_asks_the_command(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_TANDEMQ_COMPLETE={shell}_complete" in script
    assert run("completion", "csh", code=2).stderr


def test_commands_and_options_are_completed(complete: Complete) -> None:
    assert complete("com") == ["completion"]
    assert complete("topic", "sh") == ["show"]
    assert complete("topic", "create", "T", "--perm") == ["--permission"]
    assert complete("topic", "create", "T", "--permission", "r") == ["r", "rw"]


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["tandemq", "-n", "h", ":", "9876", "topic"], ["tandemq", "-n", "h:9876", "topic"]),
        (["tandemq", "--namesrv", "=", "h", ":", "1", ""], ["tandemq", "--namesrv=h:1", ""]),
        (["tandemq", "-n", "::", "1", "x"], ["tandemq", "-n::1", "x"]),
        (["tandemq", "topic", ""], ["tandemq", "topic", ""]),
    ],
)
def test_words_that_bash_splits_are_joined(words: list[str], joined: list[str]) -> None:
    assert rejoined(words) == joined


@pytest.fixture
def place(run: Run, cluster: LocalCluster) -> Iterator[tuple[str, ...]]:
    end = ("-n", cluster.name_servers)
    run("topic", "create", "Completed", *end)
    run("group", "create", "completing", *end)
    yield (*end[:1], *cluster.name_servers.replace(":", " : ").split(" "))
    run("group", "delete", "completing", "--yes", *end)
    run("topic", "delete", "Completed", "--yes", *end)


@pytest.mark.system
def test_names_of_the_cluster_are_completed(complete: Complete, place: tuple[str, ...]) -> None:
    for before, behind in ((place, ()), ((), place)):
        assert complete(*before, "topic", "show", *behind, "Compl") == ["Completed"]
        assert complete(*before, "group", "show", *behind, "compl") == ["completing"]
    assert "Completed" in complete(*place, "topic", "show", "")
    assert not [name for name in complete(*place, "topic", "show", "") if name.startswith(("%", "RMQ_SYS_"))]
    assert complete(*place, "ha", "status", "--broker", "broker-") == ["broker-a", "broker-b"]
    assert complete(*place, "topic", "create", "T", "--cluster", "") == ["DefaultCluster"]
    assert complete(*place, "quota", "set", "topic", "Compl") == ["Completed"]
    assert complete(*place, "quota", "set", "group", "compl") == ["completing"]
    assert complete(*place, "quota", "set", "user", "compl") == []


@pytest.mark.system
def test_name_server_of_the_environment_is_asked(
    complete: Complete, place: tuple[str, ...], cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMQ_NAMESRV", cluster.name_servers)
    assert complete("topic", "delete", "Compl") == ["Completed"]


def test_nothing_is_completed_without_an_answer(complete: Complete) -> None:
    assert complete("-n", "127.0.0.1", ":", "1", "topic", "show", "T") == []
    assert complete("-n", "nonsense", "group", "show", "g") == []


def test_slow_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_completion, "LIMIT_S", 0.01)
    answered, ended = threading.Event(), threading.Event()

    def names(_: str) -> list[str]:
        answered.wait()
        ended.set()
        return ["Late"]

    complete = name_completion._completer(names)
    try:
        assert complete(click.Context(main), click.Argument(["name"]), "") == []
        assert not ended.is_set()
    finally:
        answered.set()


@pytest.mark.system
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """Load the script into Bash, and let its function complete a word."""
    (tmp_path / "tandemq").write_text(f'#!/bin/sh\nexec {sys.executable} -m tandemq "$@"\n')
    (tmp_path / "tandemq").chmod(0o755)
    lines = (
        "source <(tandemq completion bash); COMP_WORDS=(tandemq topic sh); COMP_CWORD=2; _tandemq_completion tandemq; "
        'echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", lines], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["show"], done.stderr
