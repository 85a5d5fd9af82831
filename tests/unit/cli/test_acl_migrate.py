"""`tandemq acl migrate`: accounts of RocketMQ 4.9 are shown as users and policies, and created with --apply."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.client.aio.admin import Admin
from tandemq.run.local import LocalCluster

RunJson = Callable[..., Any]
FILE = """\
globalWhiteRemoteAddresses: [10.0.0.7]
accounts:
- accessKey: {name}-admin
  secretKey: admin-key
  admin: true
- accessKey: {name}-app
  secretKey: shop-key
  whiteRemoteAddress: 10.1.1.*
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
"""
MORE = "accounts:\n- accessKey: {name}-app\n  secretKey: other-key\n- accessKey: {name}-more\n  secretKey: more-key\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "acl").mkdir()
    (tmp_path / "plain_acl.yml").write_text(FILE.format(name="mig"), encoding="utf-8")
    return tmp_path


def test_accounts_are_shown_and_nothing_is_created(run_json: RunJson, conf: Path) -> None:
    found = run_json("acl", "migrate", conf / "plain_acl.yml")
    assert [(user["user"], user["type"], user["result"]) for user in found["users"]] == [
        ("mig-admin", "Super", "shown"),
        ("mig-app", "Normal", "shown"),
    ]
    assert {"policy": "Custom", "resource": "Topic:Orders", "decision": "Allow", "actions": ["Pub", "Sub"]} in found[
        "users"
    ][1]["policies"]
    file = str(conf / "plain_acl.yml")
    assert found["notMigrated"] == [
        {"user": "", "addresses": ["10.0.0.7"], "file": file},
        {"user": "mig-app", "addresses": ["10.1.1.*"], "file": file},
    ]
    assert run_json("acl", "user", "list") == []


def test_output_has_no_keys(run_text: Callable[..., str], conf: Path) -> None:
    text = run_text("acl", "migrate", conf)
    assert "mig-admin" in text and "Topic:Orders" in text and "Group:*" in text
    assert "not migrated: white addresses for all: 10.0.0.7" in text
    assert "not migrated: white addresses of mig-app: 10.1.1.*" in text
    assert "-key" not in text


def test_apply_creates_what_is_missing_on_every_master(
    run_json: RunJson, run_text: Callable[..., str], cluster: LocalCluster, conf: Path
) -> None:
    (conf / "acl" / "more.yml").write_text(MORE.format(name="mig"), encoding="utf-8")

    async def create_one() -> None:
        async with Admin(cluster.name_servers) as admin:
            await admin.create_user("mig-more", "kept-key")

    asyncio.run(create_one())
    text = run_text("acl", "migrate", conf, "--apply")
    assert "mig-app is in another file, too, which counts" in text and "-key" not in text
    assert {user["user"]: user["type"] for user in run_json("acl", "user", "list")} == {
        "mig-admin": "Super",
        "mig-app": "Normal",
        "mig-more": "Normal",
    }
    again = run_json("acl", "migrate", conf / "plain_acl.yml", "--apply")
    assert {user["result"] for user in again["users"]} == {"exists"}
    for name in ("mig-admin", "mig-app", "mig-more"):
        run_json("acl", "user", "delete", name)
    created = run_json("acl", "migrate", conf / "plain_acl.yml", "--apply")
    assert {user["result"] for user in created["users"]} == {"created"}
    policies = {(entry["user"], entry["resource"]) for entry in run_json("acl", "list", "--user", "mig-app")}
    assert {("mig-app", "Topic:Orders"), ("mig-app", "Group:*")} <= policies
    for name in ("mig-admin", "mig-app"):
        run_json("acl", "user", "delete", name)


def test_a_malformed_file_is_named_with_its_line(run_text: Callable[..., str], conf: Path) -> None:
    path = conf / "plain_acl.yml"
    path.write_text(FILE.format(name="mig") + "  - Broken\n", encoding="utf-8")
    text = run_text("acl", "migrate", conf, "--apply", code=2)
    assert f"{path}: line 12: 'Broken' is no permission" in text and "-key" not in text


def test_a_directory_without_accounts_is_an_error(run_text: Callable[..., str], tmp_path: Path) -> None:
    assert "there are no files of accounts" in run_text("acl", "migrate", tmp_path, code=2)
