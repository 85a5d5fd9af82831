"""Roots of Debian, and commands in them."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools import clean_machine

SESSION = Path(__file__).with_name("session.py")
SYSTEM = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$0" "$0"
if [ "$2" = ro ]; then
    if [ -n "$3" ]; then mount --bind "$0$3" "$0$3"; fi
    mount -o remount,bind,ro "$0"
    mount -t tmpfs tmpfs "$0/tmp"
fi
mount --rbind /dev "$0/dev"
mount -t proc proc "$0/proc"
mount --bind "$1" "$0/mnt"
root=$0
shift 3
exec /usr/sbin/chroot "$root" "$@"
"""
"""$0: the root; $1: a directory that it sees as /mnt; $2: ro or rw; $3: what stays writable if it is ro."""


def debian(root: Path, *packages: str, suite: str = "bookworm") -> None:
    """Make a minimal Debian that reaches the package mirror as this machine does."""
    clean_machine.make_root(root, suite, clean_machine.check_machine(None), packages)
    clean_machine.furnish(root, clean_machine.passed_on(os.environ))


def run(
    root: Path,
    *words: str,
    shared: Path,
    code: int = 0,
    is_isolated: bool = False,
    writable: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run a command in a root; return its output.

    Args:
        root: the root.
        words: the command.
        shared: directory that the command sees as /mnt.
        code: the expected exit status.
        is_isolated: whether it gets a network of its own, without interfaces that are up.
        writable: if given, all but this directory and /tmp is read-only.
        environ: variables of the command, besides those that every command has.
    """
    spaces = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if is_isolated else [])]
    inside = [str(root), str(shared), "rw" if writable is None else "ro", writable or "", *words]
    done = subprocess.run(
        ["unshare", *spaces, "sh", "-c", _ENTER, *inside],
        env={**SYSTEM, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{words}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def session(
    root: Path, python: str, user: tuple[int, int], data: str, *, messages: int = 1, **options: Any
) -> dict[str, Any]:
    """Run servers of an installed TandemQ in a root, and a message through them; return what the session saw.

    `messages`: its own, and those that earlier sessions have stored.
    """
    shared: Path = options["shared"]
    shutil.copy(SESSION, shared)
    words = (python, f"/mnt/{SESSION.name}", *map(str, user), "/etc/tandemq", data, str(messages))
    said = run(root, *words, is_isolated=True, **options)
    found = [line for line in said.splitlines() if line.startswith('{"version"')]
    assert len(found) == 1, said
    facts: dict[str, Any] = json.loads(found[0])
    return facts
