"""The image: its settings, its size, and servers that run from it with a root that is read-only."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import roots
from tools import debian_package, image

pytestmark = pytest.mark.timeout(1800)
UNPACKED_MIB_MAX = 200
USER = 10_001
PYTHON = "/usr/lib/tandemq/bin/python"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("image")
    words = [sys.executable, "-m", "tools.image", "--directory", str(target)]
    done = subprocess.run(words, cwd=image.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The root of the image, and its configuration."""
    root = tmp_path_factory.mktemp("unpacked") / "root"
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config: dict[str, Any] = json.load(outer.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                inner.extractall(root, filter="tar", numeric_owner=True)
    return root, config


def test_image_says_what_it_is_and_runs_without_root(unpacked: tuple[Path, dict[str, Any]]) -> None:
    config = unpacked[1]["config"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == debian_package.version()
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["tandemq"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "tandemq", "health", "--live"]
    assert list(config["Volumes"]) == ["/var/lib/tandemq"]
    assert not [name for name in config["Env"] if name.split("=")[0].startswith(("PIP_", "SSL_"))]


def test_image_is_small_and_has_nothing_of_this_machine(unpacked: tuple[Path, dict[str, Any]]) -> None:
    root = unpacked[0]
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < UNPACKED_MIB_MAX << 20
    assert not [
        path for path in files if path.name in ("pip.conf", "sh", "apt-get", "gcc") or path.stat().st_mode & 0o6000
    ]
    assert not (root / "etc/resolv.conf").exists()


def test_servers_run_with_a_read_only_root(unpacked: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, config = unpacked
    environ = dict(text.split("=", 1) for text in config["config"]["Env"])
    for name in ("dev", "proc", "mnt", "tmp"):
        (root / name).mkdir(exist_ok=True)
    assert (root / "var/lib/tandemq").stat().st_uid == USER
    facts = roots.session(
        *(root, PYTHON, (USER, USER), "/var/lib/tandemq"), shared=tmp_path, writable="/var/lib/tandemq", environ=environ
    )
    assert facts["rootIsReadOnly"]
    assert facts["user"] == USER
    assert "compiled engine" in facts["version"]
    assert len(facts["healthy"]) == 5
    assert facts["sent"][0]["status"] == "SEND_OK"
    assert len(facts["bodies"]) == 1
    assert set(facts["ended"].values()) == {0}
    assert list((root / "var/lib/tandemq/broker-a/commitlog").iterdir())
