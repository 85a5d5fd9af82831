"""Accounts of ACL 1.0 with a broker process: files beside its own, changed while it runs, and a fault at the start."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tandemq.codec.remoting.signature import signed
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tests.blackbox.programs import Caller, Program, wait_until

ADMIN, SHOP = Credentials("admin-1", "admin-key"), Credentials("shop-app", "shop-key")
FILE = """\
accounts:
- accessKey: admin-1
  secretKey: admin-key
  admin: true
- accessKey: shop-app
  secretKey: shop-key
  topicPerms:
  - Orders=PUB
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)


def may_send(caller: Caller, user: Credentials, topic: str) -> bool:
    fields = dict.fromkeys("efghj", "0") | {"a": "p", "b": topic, "c": "TBW102", "d": "4", "i": ""}
    return caller.ask(RequestCode.SEND_MESSAGE_V2, signed(fields, b"body", user), b"body").code == 0


def test_files_of_accounts_count_and_are_read_again_while_the_broker_runs(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    conf = tmp_path / "accounts"
    conf.mkdir()
    write(conf / "plain_acl.yml", FILE)
    program = start("broker", aclEnable="true", aclPath=conf)
    with Caller(program.port) as caller:
        assert may_send(caller, SHOP, "Orders") and not may_send(caller, SHOP, "Stock")
        assert may_send(caller, ADMIN, "Stock")
        write(conf / "plain_acl.yml", FILE + "  - Broken\n")
        wait_until(
            lambda: "plain_acl.yml: line 9: 'Broken' is no permission" in program.log_text(), "the fault is logged"
        )
        assert may_send(caller, SHOP, "Orders")
        write(conf / "acl" / "more.yml", "accounts:\n- accessKey: more-app\n  secretKey: more-key\n  admin: true\n")
        wait_until(lambda: may_send(caller, Credentials("more-app", "more-key"), "Stock"), "another file is read")
        write(conf / "plain_acl.yml", FILE.replace("Orders=PUB", "Stock=PUB"))
        wait_until(lambda: may_send(caller, SHOP, "Stock"), "the file is read again")
        assert not may_send(caller, SHOP, "Orders")
    assert "-key" not in program.log_text()


def test_files_stand_beside_the_file_of_the_broker_and_a_fault_there_ends_its_start(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"aclEnable=true\nstorePathRootDir={tmp_path / 'store'}\nlistenPort=0\n", encoding="utf-8")
    write(tmp_path / "plain_acl.yml", FILE + "  admin: *yes\n")
    ended = subprocess.run(
        [sys.executable, "-m", "tandemq", "broker", "-c", str(conf)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )
    assert ended.returncode == 2
    assert f"{tmp_path / 'plain_acl.yml'}: line 9: " in ended.stderr and "shop-key" not in ended.stderr
