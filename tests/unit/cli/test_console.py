"""`tandemq console`: its users, and where it may listen."""

import json
from pathlib import Path

import click
import pytest

from tandemq.cli import main
from tandemq.console.access import passwords
from tests.unit.cli.conftest import Run


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(passwords, "_COST", 2)
    return f"sqlite:///{tmp_path / 'groups.db'}"


def test_users_are_added_changed_listed_and_removed(run: Run, url: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("correct horse\n")
    end = ("--database", url)
    run("console", "user", "add", "ada", "--role", "admin", "--password-file", secret, *end)
    run("console", "user", "add", "bob", "--role", "viewer", *end, typed="correct horse\ncorrect horse\n")
    run("console", "user", "role", "bob", "--role", "operator", *end)
    run("console", "user", "password", "bob", "--password-file", "-", *end, typed="another horse")
    rows = json.loads(run("console", "user", "list", "--json", *end).stdout)
    assert [(row["user"], row["role"], row["sessions"]) for row in rows] == [
        ("ada", "admin", 0),
        ("bob", "operator", 0),
    ]
    assert "no admin would be left" in run("console", "user", "remove", "ada", *end, code=1).stderr
    run("console", "user", "remove", "bob", *end)
    assert (
        "10 to 256"
        in run(
            "console", "user", "add", "eve", "--role", "viewer", "--password-file", "-", *end, code=2, typed="short"
        ).stderr
    )


def test_database_before_the_subcommand_counts_unless_the_subcommand_names_another(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMQ_DATABASE", f"sqlite:///{tmp_path / 'variable.db'}")
    add = ("user", "add", "ada", "--role", "admin", "--password-file", "-")
    run("console", "--database", url, *add, typed="correct horse")
    run("console", "--database", url, "token", "add", "ada", "--name", "t", "--role", "viewer")
    end = ("--database", url)
    assert (
        "ada" in run("console", "user", "list", *end).stdout and "ada" in run("console", "token", "list", *end).stdout
    )
    assert "no user exists" in run("console", "user", "list").stdout
    assert "ada" in run("console", "--database", "sqlite:////nowhere/x.db", "user", "list", *end).stdout


def test_options_of_the_server_before_a_subcommand_are_refused(run: Run, url: str) -> None:
    for words in (("--json",), ("--port", "8000"), ("--namesrv", "127.0.0.1:1")):
        found = run("console", *words, "user", "list", "--database", url, code=2).stderr
        assert f"{words[0]} is an option of `tandemq console` alone" in found


def test_only_the_console_is_a_command_and_a_group_with_options() -> None:
    """Options of a group may not be lost: see the tests of the console above."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        if isinstance(command, click.Group) and name != "console":
            assert not command.params, name


def test_tokens_are_made_listed_and_revoked(run: Run, url: str) -> None:
    end = ("--database", url)
    run("console", "user", "add", "ada", "--role", "operator", "--password-file", "-", *end, typed="correct horse")
    add = ("console", "token", "add", "ada", "--name", "nightly")
    made = json.loads(run(*add, "--role", "viewer", "--days", "30", "--json", *end).stdout)
    assert made["token"].startswith("tq_") and made["number"] == 1
    listed = run("console", "token", "list", "--json", *end).stdout
    (row,) = json.loads(listed)
    assert (row["user"], row["name"], row["role"]) == ("ada", "nightly", "viewer") and made["token"] not in listed
    assert "at most that of its user" in run(*add, "--role", "admin", *end, code=2).stderr
    run("console", "token", "revoke", "1", *end)
    assert "no token exists" in run("console", "token", "list", *end).stdout
    assert "there is no token 1" in run("console", "token", "revoke", "1", *end, code=1).stderr


def test_other_addresses_need_tls_or_a_proxy(run: Run, url: str, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("")
    for words, why in (
        (("--host", "0.0.0.0"), "clear text"),
        (("--key", key), "need each other"),
        (("--publish",), "--publish needs --registry"),
    ):
        assert why in run("console", *words, "--database", url, code=2).stderr
