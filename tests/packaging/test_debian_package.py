"""The Debian package: clean for lintian, installed, upgraded, removed and purged in a new root; servers run from it."""

import subprocess
from pathlib import Path

import pytest

from tests.packaging import roots
from tools import debian_package, server_environment

pytestmark = pytest.mark.timeout(1800)
PYTHON = "/usr/bin/python3"
"""Debian's: the environment that runs the tests may have another one."""
INSTALL = ("apt-get", "install", "--quiet", "--yes", "--no-install-recommends")
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def tool(module: object, *words: str | Path) -> str:
    name = getattr(module, "__name__", "")
    done = subprocess.run(
        [PYTHON, "-m", name, *map(str, words)], cwd=debian_package.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two revisions of the package."""
    base = tmp_path_factory.mktemp("packages")
    tool(server_environment, base / "environment")
    return [
        Path(
            tool(
                debian_package,
                *("--environment", base / "environment", "--directory", base / "dist", "--revision", revision),
            )
        )
        for revision in ("1", "2")
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("debian") / "root"
    roots.debian(made, "adduser")
    return made


def test_lintian_finds_no_error(packages: list[Path]) -> None:
    words = ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", str(packages[0])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_package_of_the_same_environment_has_the_same_bytes(packages: list[Path], tmp_path: Path) -> None:
    environment = packages[0].parents[1] / "environment"
    again = Path(tool(debian_package, "--environment", environment, "--directory", tmp_path))
    assert again.read_bytes() == packages[0].read_bytes()


def test_installed_servers_work_through_upgrade_removal_and_purge(packages: list[Path], root: Path) -> None:
    shared = packages[0].parent

    def run(*words: str, code: int = 0, **environ: str) -> str:
        return roots.run(root, *words, shared=shared, code=code, environ=QUIET | environ)

    def serve(messages: int) -> set[str]:
        ids = run("sh", "-c", "id -u tandemq; id -g tandemq").split()
        user = (int(ids[0]), int(ids[1]))
        facts = roots.session(root, "/usr/bin/python3", user, "/var/lib/tandemq", messages=messages, shared=shared)
        assert "compiled engine" in facts["version"]
        assert len(facts["healthy"]) == 5
        assert facts["sent"][0]["status"] == "SEND_OK"
        assert set(facts["ended"].values()) == {0}
        assert (facts["user"], facts["dataIsWritable"]) == (user[0], True)
        bodies = set(facts["bodies"])
        assert len(bodies) == messages
        return bodies

    run("apt-get", "update", "--quiet")
    run(*INSTALL, f"/mnt/{packages[0].name}")
    assert run("stat", "-c", "%U:%G %a", "/etc/tandemq", "/var/lib/tandemq").splitlines() == [
        "root:tandemq 750",
        "tandemq:tandemq 750",
    ]
    assert run("sh", "-c", "ls /usr/share/man/man1/tandemq.1.gz").strip()
    run("bash", "-n", "/usr/share/bash-completion/completions/tandemq")
    first = serve(1)

    # The administrator's changes survive an upgrade, and so does the store.
    run("sh", "-c", "echo '# ours' >>/etc/tandemq/broker-a.conf; chmod 0700 /var/lib/tandemq")
    run(*INSTALL, f"/mnt/{packages[1].name}")
    assert run("dpkg-query", "-W", "-f", "${Version}", "tandemq").endswith("-2")
    assert "# ours" in run("cat", "/etc/tandemq/broker-a.conf")
    assert run("stat", "-c", "%a", "/var/lib/tandemq").strip() == "700"
    second = serve(2)
    assert first < second, "the message that was sent before the upgrade is delivered after it"

    run("apt-get", "remove", "--quiet", "--yes", "tandemq")
    assert not (root / "usr/lib/tandemq").exists(), "bytecode was left behind"
    assert (root / "etc/tandemq/broker-a.conf").exists()
    assert "TANDEMQ_PURGE_STORES=yes" in run("dpkg", "--purge", "tandemq")
    assert not (root / "etc/tandemq").exists()
    assert (root / "var/lib/tandemq/broker-a/commitlog").exists()

    run(*INSTALL, f"/mnt/{packages[1].name}")
    assert second < serve(3), "a new installation uses the store that a purge has left"
    run("dpkg", "--purge", "tandemq", TANDEMQ_PURGE_STORES="yes")
    assert not (root / "var/lib/tandemq").exists()
    run("getent", "passwd", "tandemq", code=2)
