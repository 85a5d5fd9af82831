"""The tools that build packages, as far as they need neither root nor a network, and what packages contain."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.cli.health import USUAL
from tandemq.cli.main import COMMANDS
from tandemq.config.files import load_broker_config, load_name_server_config, load_proxy_config
from tools import debian_package, image, manual_page, server_environment

LOCK = """\
# A comment.
click==8.1 \\
    --hash=sha256:01
    # via tandemq (pyproject.toml)
colorama==0.4 ; sys_platform == "win32" \\
    --hash=sha256:02
    # via
    #   Click
    #   pytest
pytest==9.0 \\
    --hash=sha256:03
    # via pytest-xdist
leaf.package==1.0 \\
    --hash=sha256:04
    # via colorama
"""


def test_lock_of_servers_has_what_they_need_and_no_more() -> None:
    found = server_environment.locked([LOCK], ["click"])
    assert re.findall(r"^([\w.]+)==", found, re.MULTILINE) == ["click", "colorama", "leaf.package"]
    assert found.count("--hash") == 3
    with pytest.raises(AssertionError, match="do not have rich"):
        server_environment.locked([LOCK], ["rich"])
    texts = [(server_environment.ROOT / name).read_text(encoding="utf-8") for name in server_environment.LOCKS]
    names = re.findall(
        r"^([\w.-]+)==", server_environment.locked(texts, server_environment.server_requirements()), re.MULTILINE
    )
    assert {"click", "markdown-it-py", "numpy", "protobuf", "kazoo", "sqlalchemy", "uvicorn", "h11"} <= set(names)
    assert not {"pytest", "mypy", "pyspark", "playwright"} & set(names)


def test_record_of_a_package_names_files_that_are_there_only(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    lines = ("a.py,sha256=x,1\n", '"b,c.py",,\n', "../../bin/a,,\n")
    assert [server_environment.is_there(tmp_path, line) for line in lines] == [True, False, False]


def test_manual_page_describes_every_command() -> None:
    text = "\n".join(manual_page.page())
    for name in COMMANDS:
        assert re.search(rf"^\.SS tandemq {name}\b", text, re.MULTILINE), name
    assert "\\-\\-accept\\-loss" in text
    assert manual_page.escaped(".x\n'y\n\\z-") == "\\&.x\n\\&'y\n\\ez\\-"
    assert not [line for line in text.splitlines() if line.startswith((". ", "' "))]


def test_context_of_the_image_has_what_its_file_copies(tmp_path: Path) -> None:
    image.copy_context(tmp_path / "context")
    for name in ("deploy/image/Containerfile", "deploy/config/broker-a.conf", "src/tandemq/__init__.py", "LICENSE"):
        assert (tmp_path / "context" / name).is_file(), name
    assert not list((tmp_path / "context").rglob("*.so"))
    used = set(server_environment.SOURCES) | set(server_environment.LOCKS) | {"tools/server_environment.py"}
    assert not [name for name in used if not (tmp_path / "context" / name).exists()]


@pytest.mark.parametrize(
    ("name", "load", "port"),
    [
        ("broker-a", load_broker_config, 5557),
        ("namesrv", load_name_server_config, 5558),
        ("proxy", load_proxy_config, 5559),
    ],
)
def test_settings_of_packages_are_accepted_and_stay_on_this_machine(
    name: str, load: Callable[..., Any], port: int
) -> None:
    path = debian_package.DEPLOY / "config" / f"{name}.conf"
    warnings: list[str] = []
    config = load(path.read_text(encoding="utf-8"), path=str(path), warn=warnings.append, overrides={})
    assert warnings == []
    assert (config.bind_address, config.metrics_bind_address) == ("127.0.0.1", "127.0.0.1")
    assert config.metrics_port == port
    assert f"http://127.0.0.1:{port}" in USUAL
    assert path.name in debian_package.CONFIGURATION


def test_package_has_the_time_of_its_source() -> None:
    assert debian_package.source_epoch({"SOURCE_DATE_EPOCH": "1700000000"}) == 1_700_000_000
    assert debian_package.source_epoch({}) > 1_700_000_000
