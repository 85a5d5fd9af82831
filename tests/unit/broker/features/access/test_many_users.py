"""Many users: pages of lists and of copies, changes that do not copy all, what is written, and bounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import Now
from tandemq.broker.features.access import processor, table
from tandemq.broker.features.access.table import AccessTable, CopiedAccessTable
from tandemq.broker.kernel.copied_tables import Polled
from tandemq.broker.state.persistence import Saver
from tandemq.errors import ProtocolError
from tandemq.model.access import AclUser, Credentials, Policy, PolicyEntry
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.real.disk import RealDisk
from tests.unit.broker.features.access.test_access import ROOT, Guarded

NOW = Now(0, 0)


def policies(*names: str) -> tuple[Policy, ...]:
    return (Policy("Custom", tuple(PolicyEntry(f"Topic:{name}", ("Pub",), "Allow") for name in names)),)


def filled(path: Path, count: int = 10, started_ms: int = 1_000) -> AccessTable:
    found = AccessTable(Saver(RealDisk(path)), started_ms)
    for number in range(count):
        found.put(AclUser(f"user-{number:03}", "a-key"))
        found.put_policies(f"user-{number:03}", policies("T", f"t-{number}"))
    return found


class Slave:
    """A slave's table, which asks a master's for what it lacks."""

    def __init__(self, path: Path) -> None:
        self.table = AccessTable(Saver(RealDisk(path)), 2_000)
        self.copied = CopiedAccessTable(self.table)

    def ask(self, master: CopiedAccessTable) -> list[dict[str, Any]]:
        """Ask until the master has no more; return the responses."""
        bodies = []
        while True:
            body = master.polled(Command(Code.TANDEM_ACCESS, fields=self.copied.request_fields()))
            self.copied.take_polled(Polled(body, "10.0.0.1:1", True, NOW))
            bodies.append(json.loads(body))
            if not self.copied.has_more:
                return bodies

    def has_all_of(self, master: AccessTable) -> bool:
        own = self.table
        return (own.users, own.policies, own.acl1) == (master.users, master.policies, master.acl1)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAGE_SIZE", 7)


# Copies.


@pytest.mark.usefixtures("small_pages")
def test_a_slave_copies_pages_and_then_changes_only(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "master"), Slave(tmp_path / "slave")
    copied = CopiedAccessTable(master)
    pages = slave.ask(copied)
    assert [len(page["users"]) for page in pages] == [3, 3, 3, 1] and slave.has_all_of(master)
    (unchanged,) = slave.ask(copied)
    assert not (unchanged["users"] or unchanged["policies"] or unchanged["tandemRemoved"])
    master.put(AclUser("user-005", "another-key"))
    master.remove("user-007")
    master.put(AclUser("user-999", "a-key"))
    master.put_policies("root", policies("of-the-settings"))
    (changes,) = slave.ask(copied)
    assert [user["username"] for user in changes["users"]] == ["user-005", "user-999"]
    assert slave.has_all_of(master) and list(slave.table.names()) == list(master.names())


@pytest.mark.usefixtures("small_pages")
def test_what_changes_while_pages_are_copied_comes_afterwards(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "master"), Slave(tmp_path / "slave")
    copied = CopiedAccessTable(master)
    body = copied.polled(Command(Code.TANDEM_ACCESS, fields=slave.copied.request_fields()))
    slave.copied.take_polled(Polled(body, "10.0.0.1:1", True, NOW))
    assert slave.copied.has_more and not slave.table.users
    master.remove("user-000")
    master.put(AclUser("user-0000", "a-key"))
    slave.ask(copied)
    slave.ask(copied)
    assert slave.has_all_of(master)


@pytest.mark.usefixtures("small_pages")
def test_a_slave_copies_all_after_a_start_of_its_master_and_when_it_was_away_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "CHANGES_KEPT", 3)
    master, slave = filled(tmp_path / "1"), Slave(tmp_path / "slave")
    slave.ask(CopiedAccessTable(master))
    for number in range(3):
        master.put(AclUser(f"user-00{number}", "another-key"))
    assert len(slave.ask(CopiedAccessTable(master))) == 1
    for number in range(4):
        master.put(AclUser(f"user-00{number}", "a-third-key"))
    assert len(slave.ask(CopiedAccessTable(master))) == 4 and slave.has_all_of(master)
    other = filled(tmp_path / "2", 5, started_ms=5_000)
    assert len(slave.ask(CopiedAccessTable(other))) == 2 and slave.has_all_of(other)


@pytest.mark.usefixtures("small_pages")
def test_pages_of_two_masters_are_not_mixed(tmp_path: Path) -> None:
    slave = Slave(tmp_path / "slave")
    masters = [CopiedAccessTable(filled(tmp_path / str(ms), started_ms=ms)) for ms in (1_000, 3_000)]
    body = masters[0].polled(Command(Code.TANDEM_ACCESS, fields=slave.copied.request_fields()))
    slave.copied.take_polled(Polled(body, "10.0.0.1:1", True, NOW))
    with pytest.raises(ProtocolError, match="two masters"):
        slave.ask(masters[1])
    assert not slave.copied.has_more and not slave.table.users
    assert len(slave.ask(masters[1])) == 4


@pytest.mark.usefixtures("small_pages")
def test_pieces_on_a_replication_connection_are_the_whole_table(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "master"), Slave(tmp_path / "slave")
    slave.table.put(AclUser("gone", "a-key"))
    pieces = list(CopiedAccessTable(master).pieces())
    assert len(pieces) == 4
    for piece in pieces:
        slave.copied.take(json.loads(piece), piece)
    assert slave.has_all_of(master)


@pytest.mark.parametrize("version", ["", "1000", "1000:", "1000:x", "1000:-1", "1000:99", "999:1", "1000:" + "9" * 30])
def test_unknown_versions_get_the_whole_table(tmp_path: Path, version: str) -> None:
    master = CopiedAccessTable(filled(tmp_path))
    body = json.loads(master.polled(Command(Code.TANDEM_ACCESS, fields={"version": version})))
    assert body["whole"] is True and len(body["users"]) == 10


# The file.


def test_a_change_writes_one_line_and_the_file_has_all_after_it(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    users = [Credentials(f"user-{number}", "a-key") for number in range(5)]
    for user in users:
        broker.create(user)
        broker.allow(user, f"Topic:{user.access_key}", "Pub")
    file = tmp_path / "config" / "accessControl.json"
    size = file.stat().st_size
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": "user-0"}).code == ResponseCode.SUCCESS
    assert file.stat().st_size == size
    journals = list(file.parent.glob("accessControl.changes-*"))
    assert journals and all(path.stat().st_mode & 0o077 == 0 for path in journals)
    again = Guarded(tmp_path)  # as after a kill
    assert "user-0" not in [user["username"] for user in json.loads(again.as_user(ROOT, Code.AUTH_LIST_USER).body)]
    assert again.send_as(users[1], "user-1") == ResponseCode.SUCCESS
    assert again.send_as(users[0], "user-0") == ResponseCode.NO_PERMISSION
    again.node.close()
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert [user["username"] for user in kept["users"]] == [f"user-{number}" for number in range(1, 5)]
    assert not list(file.parent.glob("accessControl.changes-*"))


def test_a_table_of_any_size_is_encoded_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_ENCODED_AT_ONCE", 2)
    for count in (0, 1, 2, 3, 5):
        found = filled(tmp_path / str(count), count)
        read = json.loads(table.FILE.encoded(found.as_json()))
        assert len(read["users"]) == len(read["policies"]) == count and read["dataVersion"]["counter"] == 2 * count


# Lists and bounds.


def listed(broker: Guarded, code: int, **fields: str) -> tuple[list[str], str | None]:
    answer = broker.as_user(ROOT, code, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = json.loads(answer.body) if answer.body else []
    return [each.get("username") or each["subject"] for each in found], answer.fields.get("next")


def test_lists_come_in_pages(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    for number in range(5):
        user = Credentials(f"user-{number}", "a-key")
        broker.create(user)
        broker.allow(user, "Topic:T", "Pub")
    assert listed(broker, Code.AUTH_LIST_USER) == (["root", *(f"user-{number}" for number in range(5))], None)
    assert listed(broker, Code.AUTH_LIST_USER, limit="4") == (["root", "user-0", "user-1", "user-2"], "user-2")
    assert listed(broker, Code.AUTH_LIST_USER, limit="4", after="user-2") == (["user-3", "user-4"], None)
    assert listed(broker, Code.AUTH_LIST_USER, limit="9", filter="-4") == (["user-4"], None)
    assert listed(broker, Code.AUTH_LIST_ACL, limit="2", after="user-0") == (["User:user-1", "User:user-2"], "user-2")
    assert broker.as_user(ROOT, Code.AUTH_LIST_USER, {"limit": "x"}).code != ResponseCode.SUCCESS


def test_a_page_ends_after_some_work_even_if_nothing_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "PAGE_WORK_MAX", 3)
    broker = Guarded(tmp_path)
    for number in range(5):
        broker.create(Credentials(f"user-{number}", "a-key"))
    assert listed(broker, Code.AUTH_LIST_USER, limit="9", filter="-4") == ([], "user-1")
    assert listed(broker, Code.AUTH_LIST_USER, limit="9", filter="-4", after="user-1") == (["user-4"], None)


def test_a_list_that_is_too_long_is_refused_and_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "LIST_SIZE_MAX", 3)
    broker = Guarded(tmp_path)
    for number in range(5):
        broker.create(Credentials(f"user-{number}", "a-key"))
    answer = broker.as_user(ROOT, Code.AUTH_LIST_USER)
    assert answer.code == ResponseCode.NO_PERMISSION and "filter" in str(answer.remark) and not answer.body
    assert listed(broker, Code.AUTH_LIST_USER, filter="-1") == (["user-1"], None)


def test_entries_of_all_users_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = filled(tmp_path, 5)
    monkeypatch.setattr(table, "SIZE_MAX", 12)
    found.put_policies("user-000", policies(*"abcd"))
    with pytest.raises(ProtocolError, match="at most 12"):
        found.put_policies("user-001", policies(*"abc"))
    found.remove("user-000")
    found.put_policies("user-001", policies(*"abc"))
