"""docs/guides/java.md: its first message, with the page's own program and commands."""

import os
import subprocess
from pathlib import Path

import pytest

from tandemq.run.local import LocalCluster
from tests.interop.java import java_executable
from tests.pages import Page

PAGE = Page("docs/guides/java.md")
RUN_S = 400


@pytest.mark.timeout(500)
def test_program_of_the_page_sends_and_receives(tmp_path: Path) -> None:
    [program] = PAGE.blocks("A first message", "java")
    [commands] = PAGE.blocks("A first message")
    with LocalCluster(tmp_path / "cluster") as cluster:
        text = PAGE.replaced(program, {"127.0.0.1:9876": cluster.name_servers})
        (tmp_path / "Orders.java").write_text(text, encoding="utf-8")
        path = f"{Path(java_executable()).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    sent, received = done.stdout.splitlines()[-2:]
    assert "sendStatus=SEND_OK" in sent
    assert received == "42 paid"
