"""The compose file: valid for docker-compose, its commands and files exist, its secrets are made."""

import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from tandemq import __version__
from tests.spec import ROOT

COMPOSE = ROOT / "deploy" / "compose"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services, as docker-compose understands the file."""
    # Debian's release does not know the key `name`, which newer ones want.
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    words = ["docker-compose", "--file", "-", "config"]
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("name:"))
    done = subprocess.run(words, input=plain, cwd=COMPOSE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = subprocess.run(
        ["python3", "-c", "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    found: dict[str, Any] = json.loads(loaded.stdout)["services"]
    return found


def parsed(words: list[str]) -> click.Context:
    """Parse a command line without running it. Raises click.UsageError for what does not exist."""
    command: click.Command = importlib.import_module("tandemq.cli").main
    context: click.Context | None = None
    while True:
        name = command.name or "tandemq"
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, click.Group) or not context._protected_args:
            return context
        words = [*context._protected_args, *context.args]
        command = command.commands[words.pop(0)]


def test_commands_of_services_exist(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        name: service for name, service in services.items() if service["image"] == f"localhost/tandemq:{__version__}"
    }
    assert set(own) == {"namesrv", "group", "broker-0", "broker-1", "proxy", "kafka", "console"}
    for service in own.values():
        words = [word for word in service["command"] if not word.startswith(("--certificate=", "--key="))]
        assert parsed(words).command.name
        check = service["healthcheck"].get("test", ["NONE"])
        assert check == ["NONE"] or parsed(check[2:]).command.name == "health"
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    with pytest.raises(click.UsageError):
        parsed(["broker", "--none"])


def test_files_of_services_exist(services: dict[str, Any]) -> None:
    sources = {
        volume.split(":")[0] if isinstance(volume, str) else volume["source"]
        for service in services.values()
        for volume in service.get("volumes", ())
    }
    paths = [Path(source) for source in sources if source.startswith(("/", "."))]
    assert paths
    assert not [path for path in paths if not (COMPOSE / path).exists()]


def test_secrets_are_made_once(tmp_path: Path) -> None:
    assert shutil.which("openssl") is not None, "apt-get install openssl"
    words = ["sh", str(COMPOSE / "prepare.sh"), str(tmp_path / "secrets")]
    subprocess.run(words, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == {"replication.secret", "console.crt", "console.key", "grafana.password"}
    assert all((tmp_path / "secrets" / name).stat().st_mode & 0o777 == 0o400 for name in made)
    assert (tmp_path / "secrets" / "console.key").stat().st_uid == 10_001
    again = subprocess.run(words, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert again.stdout == ""
    assert {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()} == made
    assert subprocess.run([*words[:2], "--help"], capture_output=True, text=True, check=True).stdout.startswith("Usage")
