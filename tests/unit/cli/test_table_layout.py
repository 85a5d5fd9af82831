"""Tables: they fit terminals of 80 and 120 columns whatever the names, and lose nothing without saying so."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import click
import pytest

import tandemq
from tandemq.cli.admin import group as group_commands
from tandemq.cli.admin.trace import _show as show_trace
from tandemq.cli.ha import commands as ha_commands
from tandemq.cli.ha import config, roles
from tandemq.cli.ha.queue_comparison import ComparedQueues, OffsetRange, QueueDifference
from tandemq.cli.ha.scrub import show_damages
from tandemq.cli.ha.status import _LESS, _empty, _show_group
from tandemq.cli.support import output
from tandemq.cli.support.members import FoundBroker, Group, GroupSearch
from tandemq.cli.support.output import show_facts, show_rows
from tandemq.cli.support.table_layout import COLUMNS_MIN, fitted
from tandemq.cli.top import TopBroker, TopRefresh, screen
from tandemq.client.admin.traces import MessageTrace, TraceEvent, TraceStep
from tandemq.console.access import passwords
from tandemq.coordination.registry.records import GroupConfig, GroupMember, Mode, Role
from tandemq.groupdb.publisher import AppliedGroup, ApplyOutcome
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

WIDTHS = (80, 120)
CLI = Path(tandemq.__path__[0]) / "cli"
LONG = "a-very-long-name-" * 5
BROKER = "broker-of-a-long-name-" * 3
PROSE = "the reason is given in a sentence with many words, as brokers and registries do " * 2
ADDRESS = "broker-with-a-long-name.of-a-long.domain.example.org:10911"


def widest(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


# Layout.


def random_rows(random: Random) -> list[dict[str, Any]]:
    def value(kind: int) -> Any:
        if kind == 0:
            return random.choice([None, random.randrange(10 ** random.randrange(1, 20))])
        if kind == 1:
            return random.choice(["", "x" * random.randrange(200)])
        return " ".join("word" * random.randrange(1, 4) for _ in range(random.randrange(30)))

    kinds = {f"{'column' * random.randrange(1, 4)}{number}": random.randrange(3) for number in range(1, 15)}
    return [{head: value(kind) for head, kind in kinds.items()} for _ in range(random.randrange(1, 6))]


def test_any_table_fits_any_terminal_and_names_what_it_leaves_out() -> None:
    random = Random(5)
    for number in range(300):
        rows = random_rows(random)
        less = random.sample(list(rows[0]), random.randrange(len(rows[0])))
        columns = random.randrange(30, 200)
        table = fitted(rows, columns, less)
        assert widest("\n".join(table.lines)) <= max(columns, COLUMNS_MIN), (number, columns)
        shown = "".join("".join(table.lines).split())
        for head in rows[0]:
            is_empty = all(row[head] in (None, "") for row in rows)
            assert is_empty or head in table.left_out or head[: COLUMNS_MIN // 2] in shown, (number, head)


def test_wide_terminal_gets_the_whole_table() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "lag": 10, "why": ""},
        {"name": "bcd", "lag": None, "why": "it is away"},
    ]
    whole = ["name  lag  why", "----  ---  ----------", "a      10", "bcd        it is away"]
    assert fitted(rows, None).lines == fitted(rows, 80).lines == whole


def test_long_texts_are_wrapped_before_columns_are_left_out() -> None:
    rows = [{"id": 1, "why": "one two three four five six seven", "spare": "s" * 20}]
    assert fitted(rows, 56, ["spare"]).lines == [
        "id  why                             spare",
        "--  ------------------------------  --------------------",
        " 1  one two three four five six     ssssssssssssssssssss",
        "    seven",
    ]
    narrow = fitted(rows, 50, ["spare"])
    assert narrow.left_out == ["spare"]
    assert narrow.lines[-1] == " 1  one two three four five six seven"


def test_columns_without_values_go_first_and_rows_become_blocks_last() -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "t" * 60, "none": None, "group": "g" * 30},
        {"topic": "u", "none": "", "group": "h"},
    ]
    assert fitted(rows, 92).left_out == []
    assert "none" not in fitted(rows, 92).lines[0]
    assert fitted(rows, 50).lines == [
        "topic  " + "t" * 43,
        "       " + "t" * 17,
        "group  " + "g" * 30,
        "",
        "topic  u",
        "group  h",
    ]


def test_narrow_table_names_the_missing_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: 40)
    show_rows([{"a": "a" * 25, "b": "b" * 25}], as_json=False, less=("b",))
    assert capsys.readouterr().out.splitlines()[-2:] == ["not shown at 40 columns: b; --wide shows", "them"]
    show_facts({"name": "word " * 20, "path": "/" + "x" * 60}, as_json=False)
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "      word word word word word word word",
        "      word word word word word word",
        "path  /" + "x" * 60,
    ]


# Every table of the commands.


def table_calls() -> set[tuple[str, int]]:
    """Return file and line of each call that prints a table; Spark's commands need a session of their own."""
    found = set()
    for path in CLI.rglob("*.py"):
        if path.parent.name not in ("spark", "support"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "show_rows":
                    found.add((path.name, node.lineno))
    return found


class Recorder:
    """The calls of `show_rows` that printed a table, and the widest line of each width."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: set[tuple[str, int]] = set()
        self.columns = 80
        real = fitted

        def recorded(*arguments: Any) -> Any:
            frame = sys._getframe(2)
            self.calls.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            return real(*arguments)

        monkeypatch.setattr(output, "fitted", recorded)
        monkeypatch.setattr(output, "terminal_columns", lambda: self.columns)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def listed(run: Run, cluster: LocalCluster, tmp_path: Path) -> Iterator[list[tuple[object, ...]]]:
    """Commands that print tables of a cluster with long names."""
    end = ("-n", cluster.name_servers)
    place = ("--database", f"sqlite:///{tmp_path / 'groups.db'}")
    topic, group, user = f"{LONG}topic", f"{LONG}group", f"u{'s' * 60}er"
    run("topic", "create", topic, *end)
    run("group", "create", group, *end)
    run("message", "send", topic, "body", *end)
    run("offset", "reset", group, topic, "--to", "latest", "--yes", *end)
    run("quota", "set", "topic", topic, "--messages", 1, *end)
    run("acl", "user", "create", user, *end)
    run("acl", "allow", user, f"Topic:{topic}", "--action", "Pub", "--action", "Sub", "--from", "10.0.0.0/24", *end)
    handle = run("--json", "message", "send", topic, "later", "--delay", "1h", *end).stdout.split('"recallHandle": "')[
        1
    ]
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        f"accounts:\n- accessKey: {user}\n  secretKey: 12345678\n  admin: false\n  topicPerms:\n  - {topic}=PUB|SUB\n"
    )
    run("console", "user", "add", user, "--role", "admin", "--password-file", "-", *place, typed="correct horse")
    run("console", "token", "add", user, "--name", LONG[:64], "--role", "viewer", *place)
    run("ha", "config", "set", BROKER, "--mode", "elect", "--member", "0,role=master", *place)
    yield [
        ("topic", "show", topic, *end),
        ("group", "list", *end),
        ("group", "show", group, *end),
        ("offset", "show", group, *end),
        ("offset", "reset", group, topic, "--to", "earliest", *end),
        ("quota", "list", *end),
        ("cluster", "list", *end),
        ("acl", "user", "list", *end),
        ("acl", "list", *end),
        ("acl", "migrate", accounts, *end),
        ("message", "send", topic, "late", "--delay", "1h", *end),
        ("message", "recall", handle.partition('"')[0], *end),
        ("ha", "status", *end),
        ("ha", "scrub", *end),
        ("ha", "verify", *end),
        ("console", "user", "list", *place),
        ("console", "token", "list", *place),
        ("ha", "config", "import", *place),
        ("ha", "config", "list", *place),
        ("ha", "config", "show", BROKER, *place),
        ("ha", "config", "apply", *place),
        ("ha", "config", "remove", BROKER, "--yes", *place),
    ]
    run("quota", "delete", "topic", topic, *end)
    run("acl", "user", "delete", user, *end)


def failover(broker_id: int, **changes: Any) -> dict[str, Any]:
    """Return a member's answer in a group with a registry, with long reasons."""
    return {
        "brokerName": BROKER,
        "brokerId": broker_id,
        "isMaster": broker_id == 0,
        "stage": "handing over",
        "mode": "slave-consume",
        "epoch": 10**9,
        "master": 0,
        "reader": 1,
        "inSync": [0, 1],
        "askedInSync": [0],
        "reason": PROSE,
        "why": PROSE,
        "trouble": PROSE,
        "warning": PROSE,
        "registry": "suspended",
        "registryAddress": f"namesrv://{ADDRESS}",
        "isLonely": True,
        "mayRead": True,
        "mayWrite": True,
        "sinceMs": 1_700_000_000_123,
        "leaseLeftMs": 1_234,
        "leaseMs": 1_300,
        "sessionMs": 2_000,
        "checks": 2,
        "members": [{"brokerId": number, "address": ADDRESS, "lagBytes": 10**12, "lagMs": 10**9} for number in (0, 1)],
        "timeline": [{"ms": 1_700_000_000_123, "epoch": 7, "text": PROSE}],
        **changes,
    }


async def members_of(*_: object) -> object:
    """Return the connected consumers of a group."""
    return SimpleNamespace(
        connections=[SimpleNamespace(client_id=f"{ADDRESS}@{LONG}", address=ADDRESS, language="JAVA")], subscriptions={}
    )


def shown_without_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return functions that print the tables for which a cluster would have to be in trouble."""
    members = [FoundBroker(BROKER, number, ADDRESS, True, failover(number)) for number in (0, 1)]
    group = Group(BROKER, members, missing=[2])
    step = TraceStep(
        event=TraceEvent.SENT, time_ms=10**12, group=LONG, client=ADDRESS, broker=ADDRESS, cost_ms=5, outcome=PROSE
    )
    queue = MessageQueue(LONG, LONG, 3)
    compared = ComparedQueues(8, (QueueDifference(queue, OffsetRange(1, 10**12), None),))
    comparison = ha_commands.ReplicaComparison(0, 10**12, 5 * 10**11, compared)
    monkeypatch.setattr(roles, "_group", lambda *_: group)
    monkeypatch.setattr(ha_commands, "compare", lambda *_: comparison)
    monkeypatch.setattr(ha_commands, "try_log_health", lambda _: None)
    monkeypatch.setattr(GroupSearch, "groups", lambda *_: [group])
    damage = {
        "broker": BROKER,
        "id": 1,
        "from": 10**12,
        "to": 2 * 10**12,
        "fate": "lost",
        "why": PROSE,
        "repair": PROSE,
    }

    return [
        lambda: show_trace(MessageTrace(message_id="A" * 32, topic=BROKER, steps=[step]), first=True),
        lambda: show_damages([damage]),
        lambda: _show_group(group),
        lambda: print(run("ha", "history", "--broker", BROKER).stdout),
        lambda: print(run("ha", "verify", code=3).stdout),
        lambda: print(run("health", f"http://127.0.0.1:1/{LONG}", code=1).stdout),
    ]


@pytest.mark.system
def test_every_table_fits_terminals_with_long_names(
    run: Run,
    recorder: Recorder,
    listed: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(passwords, "_COST", 2)
    refused = AppliedGroup("DefaultCluster", BROKER, ApplyOutcome.REFUSED, PROSE)
    monkeypatch.setattr(config, "_apply", lambda *_: [refused])
    known = GroupConfig(Mode.ELECT, (GroupMember(0, Role.MASTER),))
    monkeypatch.setattr(config, "_published", lambda *_: [("DefaultCluster", f"{BROKER}b", known)])
    monkeypatch.setattr(group_commands, "_members", members_of)
    for words in listed:
        is_once = words[1:3] == ("config", "remove") or words[1] == "recall"
        for recorder.columns in WIDTHS[: 1 if is_once else 2]:
            printed = run(*words, code=3 if "apply" in words else 0).stdout
            printed = re.split("^read", printed, maxsplit=1, flags=re.MULTILINE)[0]  # lists of names behind tables
            assert widest(printed) <= recorder.columns, f"{words} at {recorder.columns} columns:\n{printed}"
    for show in shown_without_cluster(run, monkeypatch):
        for recorder.columns in WIDTHS:
            capsys.readouterr()
            show()
            printed = capsys.readouterr().out
            assert widest(printed) <= recorder.columns, f"at {recorder.columns}:\n{printed}"
    assert table_calls() - recorder.calls == set()


def test_status_of_members_keeps_its_important_columns() -> None:
    row = {**_empty("broker-a", 1, "10.10.10.10:10911"), "role": "ASYNC_MASTER", "state": "answers"}
    row |= {"logStart": 0, "logEnd": 10**10, "lagBytes": 10**6, "slavesInSync": 1, "refused": 0, "secured": "secret"}
    row |= {"lastReadS": 0.1, "lastWriteS": 0.1, "verifiedH": 1.5, "damaged": 0, "repaired": 0}
    for hidden in ("slaves", "log", "failover", "registered", "refusing"):
        del row[hidden]
    shown = fitted([row], 80, _LESS)
    assert widest("\n".join(shown.lines)) <= 80
    assert shown.lines[0].split()[:4] == ["broker", "id", "role", "address"], "a table, with the important columns"
    assert "logEnd" in shown.lines[0] and "lagBytes" in shown.lines[0]


@pytest.mark.system
def test_wide_and_pipes_get_all_columns(run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("ha", "status", "-n", cluster.name_servers)
    piped = run(*words).stdout
    monkeypatch.setattr(output, "terminal_columns", lambda: 80)
    narrow, wide = run(*words).stdout, run(*words, "--wide").stdout
    heads = ["broker", "id", "role", "address", "state", "logStart", "logEnd", "lagBytes", "slavesInSync", "refused"]
    for text in (piped, wide):
        assert text.splitlines()[2].split()[: len(heads)] == heads
    assert "lastReadS" not in narrow.splitlines()[2]
    assert "lastReadS" in narrow and "--wide shows them" in narrow.replace("\n", " ")


@pytest.mark.system
def test_permissions_are_words(run: Run, cluster: LocalCluster) -> None:
    for permission, text in (("r", "read"), ("w", "write"), ("rw", "read and write")):
        run("topic", "create", "Permitted", "--permission", permission, "-n", cluster.name_servers)
        shown = run("topic", "show", "Permitted", "-n", cluster.name_servers).stdout
        assert f"  {text}  " in shown.splitlines()[2], shown


@pytest.mark.parametrize("columns", WIDTHS)
def test_top_cuts_names_and_shows_all_figures(columns: int) -> None:
    brokers = [TopBroker(BROKER, 1, 12_345.0, 54_321.0, 0.5)]
    lines = screen(None, TopRefresh(0.0, 1_700_000_000_000, 0.1, brokers), columns, 24, colour=False)
    assert widest("\n".join(lines)) <= columns
    assert "…" in lines[3] or columns == 120
    assert lines[3].split()[1:] == ["1", "12,345", "54,321", "50%"]


# Help.


def all_commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from all_commands(child, (*words, name))


def test_help_of_every_command_fits_80_columns(run: Run) -> None:
    from tandemq.cli import main

    wide = {" ".join(words): widest(run(*words, "--help").stdout) for words in all_commands(main)}
    assert {words: width for words, width in wide.items() if width > 80} == {}
