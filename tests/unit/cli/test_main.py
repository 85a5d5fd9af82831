"""The root command: help of all commands, errors as one line with an exit code."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tandemq.cli import main
from tandemq.cli.main import COMMANDS
from tandemq.cli.support.log_format import LINE_CHARACTERS_MAX, BoundedFormatter
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run


def commands(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [words]
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            found += commands(child, (*words, name))
    return found


@pytest.mark.parametrize("words", commands(main), ids=" ".join)
def test_every_command_helps(run: Run, words: tuple[str, ...]) -> None:
    assert "Usage:" in run(*words, "--help").output


def test_list_of_commands_has_the_summary_of_each_command() -> None:
    assert isinstance(main, click.Group)
    for name, (_, summary) in COMMANDS.items():
        assert (main.commands[name].help or "").splitlines()[0] == summary


def test_every_command_that_prints_data_has_json() -> None:
    for words in commands(main):
        command: click.Command = main
        for word in words:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        if not isinstance(command, click.Group) and words != ("completion",):
            assert "--json" in [option for parameter in command.params for option in parameter.opts], words


@pytest.mark.system
def test_help_loads_neither_numpy_nor_rich_nor_the_client() -> None:
    code = (
        "import sys; from tandemq.cli import main; main(['--help'], standalone_mode=False); "
        "print([m for m in ('numpy', 'rich', 'asyncio', 'tandemq.client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_unknown_command_is_wrong_usage(run: Run) -> None:
    run("fly", code=2)


def test_unreachable_name_server_is_one_line_and_exit_code_1(run: Run) -> None:
    result = run("topic", "list", "--namesrv", "127.0.0.1:1", code=1)
    assert result.stderr.startswith("tandemq: ")
    assert len(result.stderr.splitlines()) == 1


def test_malformed_address_is_wrong_configuration(run: Run) -> None:
    assert "host:port" in run("topic", "list", "--namesrv", "nonsense", code=2).stderr


@pytest.mark.system
def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    words = f"{sys.executable} -m tandemq --help | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_log_line_with_text_of_a_client_is_truncated() -> None:
    record = logging.makeLogRecord({"msg": "topic=%s", "args": ("x" * 1_000_000,), "levelname": "INFO"})
    line = BoundedFormatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("INFO topic=xxx")
    assert line.endswith("more characters)")
    assert len(line) < LINE_CHARACTERS_MAX + 50


@pytest.mark.system
def test_name_servers_and_json_before_the_command_are_those_of_the_command(
    run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMQ_NAMESRV", "127.0.0.1:1")
    behind = run("cluster", "list", "-n", cluster.name_servers, "--json").stdout
    before = run("-n", cluster.name_servers, "--json", "cluster", "list").stdout
    assert [row["address"] for row in json.loads(before)] == [row["address"] for row in json.loads(behind)]
    assert json.loads(run("--namesrv", "127.0.0.1:2", "cluster", "list", "-n", cluster.name_servers, "--json").stdout)
    assert "127.0.0.1:2" in run("-n", "127.0.0.1:2", "topic", "list", code=1).stderr


@pytest.mark.parametrize("words", [("-n", "a:1", "log", "verify", "x"), ("--json", "-n", "a:1", "bench", "produce")])
def test_option_before_a_command_that_has_no_such_option_is_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    path = " ".join(words[-3:-1] if "log" in words else words[-2:])
    assert f"`main {path}` has no option --namesrv; leave it out" in run(*words, code=2).stderr


def test_option_before_the_subcommand_of_the_console_is_no_option_of_the_server(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'groups.db'}"
    assert json.loads(run("--json", "console", "user", "list", "--database", url).stdout) == []
