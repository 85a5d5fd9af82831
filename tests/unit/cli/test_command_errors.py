"""Errors of commands: what, where and what to do, and the exit code, for each command and kind of error."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tandemq.cli import main
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

NOBODY = "127.0.0.1:1"
ADMIN, KEY = "admin", "12345678"
ARGUMENTS = {
    "acl allow": "nobody Topic:T --action Pub",
    "acl deny": "nobody Topic:T --action Pub",
    "acl migrate": "{accounts} --apply",
    "acl revoke": "nobody",
    "acl user create": "somebody",
    "acl user delete": "nobody",
    "acl user update": "nobody --enable",
    "cluster add-group": "nobroker",
    "cluster broker-config": "nobroker",
    "cluster drain": "nobroker",
    "group create": "g",
    "group delete": "nogroup",
    "group show": "nogroup",
    "ha force-master": "--broker nobroker --id 1 --yes",
    "ha history": "--broker nobroker",
    "ha scrub": "--broker nobroker",
    "ha status": "--broker nobroker",
    "ha switch": "--broker nobroker --to 1",
    "ha verify": "--broker nobroker",
    "message query": "NoTopic --key k",
    "message send": "T body",
    "message tail": "NoTopic --seconds 1",
    "message trace": "k",
    "offset reset": "nogroup NoTopic --to latest",
    "offset show": "nogroup",
    "quota delete": "topic T",
    "quota set": "topic T --messages 1",
    "top": "--once",
    "topic create": "T",
    "topic delete": "NoTopic",
    "topic show": "NoTopic",
}
SERVERS = {"broker", "console", "kafka", "proxy", "doctor", "message recall", "spark"}
"""Commands with --namesrv that run without an answer, or that report something else first."""


def asking() -> Iterator[tuple[str, ...]]:
    """Yield the words of each command that asks a cluster."""

    def below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                yield from below(child, (*words, name))
        elif any("--namesrv" in parameter.opts for parameter in command.params):
            yield words

    for words in below(main, ()):
        name = " ".join(words)
        if name not in SERVERS and words[0] not in SERVERS:
            yield (*words, *ARGUMENTS.get(name, "").split())


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- accessKey: migrated\n  secretKey: 12345678\n  admin: false\n")
    return path


def named(words: tuple[str, ...], accounts: Path) -> list[str]:
    return [word.format(accounts=accounts) for word in words]


def test_every_command_names_the_name_server_that_does_not_answer(run: Run, accounts: Path) -> None:
    commands = list(asking())
    assert len(commands) > 30
    for words in commands:
        printed = run(*named(words, accounts), "-n", NOBODY, code=1)
        last = printed.stderr.splitlines()[-1]
        assert last.startswith("tandemq: no name server answers: "), (words, last)
        assert NOBODY in last and "--namesrv" in last, (words, last)


def test_unknown_registry_says_what_to_do(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemq.run.registry_session.ANSWER_SECONDS", 0.2)
    database = f"sqlite:///{tmp_path / 'groups.db'}"
    words = ("ha", "config", "apply", "--registry", f"namesrv://{NOBODY}", "--database", database)
    printed = run(*words, code=1).stderr
    assert f"namesrv://{NOBODY} does not answer" in printed and "--registry" in printed


@pytest.mark.system
def test_unknown_names_are_named_with_what_to_do(run: Run, cluster: LocalCluster) -> None:
    end = ("-n", cluster.name_servers)
    for words, parts in {
        "topic show NoTopic": ("NoTopic", "tandemq topic list"),
        "topic delete NoTopic": ("NoTopic", "tandemq topic list"),
        "topic create T --broker nobroker": ("nobroker", "tandemq cluster list"),
        "topic create T --cluster nocluster": ("nocluster", "tandemq cluster list"),
        "group show nogroup": ("nogroup", "tandemq group list"),
        "group delete nogroup": ("nogroup", "tandemq group list"),
        "group create g --cluster nocluster": ("nocluster", "tandemq cluster list"),
        "offset show nogroup": ("nogroup", "tandemq group list"),
        "offset reset nogroup NoTopic --to latest": ("nogroup", "tandemq group create"),
        "message tail NoTopic --seconds 1": ("NoTopic", "tandemq topic list"),
        "message query NoTopic --key k": ("NoTopic", "tandemq topic list"),
        "message trace k --topic NoTopic": ("NoTopic", "traceTopicEnable"),
        "cluster add-group nobroker": ("nobroker", "broker-a"),
        "cluster drain nobroker": ("nobroker", "broker-a"),
        "cluster broker-config nobroker": ("nobroker/0", "broker-a/0"),
        "cluster broker-config broker-a --id 5": ("broker-a/5", "broker-a/0"),
        "cluster broker-config broker-a --get nosetting": ("nosetting", "--get"),
        "cluster broker-config broker-a --set nosetting=1": ("nosetting", "settings"),
        "ha status --broker nobroker": ("nobroker", cluster.name_servers),
        "ha verify --broker nobroker": ("nobroker", cluster.name_servers),
        "ha scrub --broker nobroker": ("nobroker", "tandemq cluster list"),
        "ha history --broker nobroker": ("nobroker", cluster.name_servers),
        "ha switch --broker nobroker --to 1": ("nobroker", cluster.name_servers),
        "acl user delete nobody": ("nobody", "tandemq acl user list"),
        "acl user update nobody --enable": ("user", "tandemq acl user list"),
        "acl allow nobody Topic:T --action Pub": ("nobody", "tandemq acl user list"),
        "acl revoke nobody": ("acl", "tandemq acl list"),
    }.items():
        printed = run(*words.split(), *end, code=1).stderr
        assert len(printed.splitlines()) == 1 and printed.startswith("tandemq: "), (words, printed)
        assert all(part in printed for part in parts), (words, printed)


def test_wrong_values_are_wrong_usage_and_named(run: Run) -> None:
    for words, part in {
        "topic create T --permission x": "'r', 'rw', 'w'",
        "topic create T --queues 0": "1<=x<=16384",
        "offset reset g T --to yesterday": "2024-05-31T13:00",
        "offset reset g T --to latest --queue 1": "--broker and --queue",
        "message send T": "BODY or --file",
        "message send T b --delay tomorrow": "90s, 5m or 1h30m",
        "message send T b --at x": "2024-05-31T13:00",
        "message send T b --property x": "NAME=VALUE",
        "cluster broker-config b --set x": "KEY=VALUE",
        "ha status --address nowhere": "10.0.0.1:10911",
        "quota set topic T --messages -1": "--messages",
        "quota set topic T": "nothing is limited",
        "top --interval 0": "--interval",
        "completion csh": "'bash', 'zsh', 'fish'",
        "doctor --config /nonexistent": "/nonexistent",
        "broker -c /nonexistent": "TOML file or a RocketMQ broker.conf",
        "broker --set listenPort=many": "listenPort",
        "broker --set x": "KEY=VALUE",
    }.items():
        printed = run(*words.split(), code=2).stderr
        assert part in re.sub(r"\s+", " ", printed), (words, printed)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker with access control, and the topic T."""
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "traceTopicEnable": "true",
        "initAuthenticationUser": f'{{"username":"{ADMIN}","password":"{KEY}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"{ADMIN}","secretKey":"{KEY}"}}',
    }
    with LocalCluster(tmp_path_factory.mktemp("guarded"), groups=1, slaves=0, settings=settings) as running:
        yield running


@pytest.mark.system
def test_every_command_says_how_to_get_permission(
    run: Run, guarded: LocalCluster, accounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ("-n", guarded.name_servers)
    monkeypatch.setenv("TANDEMQ_ACCESS_KEY", ADMIN)
    monkeypatch.setenv("TANDEMQ_SECRET_KEY", KEY)
    run("topic", "create", "T", *end)
    run("topic", "create", "NoTopic", *end)
    weak = run("acl", "user", "create", "weak", *end).stdout.split()[3]
    for user, key, advice in (("weak", weak, "tandemq acl allow"), ("weak", "wrong", "TANDEMQ_CREDENTIALS")):
        monkeypatch.setenv("TANDEMQ_ACCESS_KEY", user)
        monkeypatch.setenv("TANDEMQ_SECRET_KEY", key)
        for words in asking():
            if words[:2] in (
                ("topic", "list"),
                ("cluster", "add-group"),
                ("cluster", "broker-config"),
                ("cluster", "drain"),
            ):  # the name server answers them
                continue
            known = [word.replace("nobroker", "broker-a") for word in named(words, accounts)]
            printed = run(*known, *end, code=1).stderr
            assert advice in printed.splitlines()[-1], (user, words, printed)


@pytest.mark.system
def test_doctor_finds_that_it_has_no_permission(run: Run, guarded: LocalCluster) -> None:
    printed = run("doctor", "--quiet", "-n", guarded.name_servers, code=3).stdout
    assert "authentication failed" in printed and "TANDEMQ_CREDENTIALS" in printed
