"""The tools of releases: the same bytes at each build, one version, the bill of materials, trials of installations."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tandemq
from tools import arm64, release, sbom, try_install

pytestmark = pytest.mark.timeout(900)
"""Builds and clusters may share their processor with other tests."""
ROOT = Path(__file__).resolve().parent.parent
DATE = 1_700_000_000
LOCK = """\
alpha==1.0 \\
    --hash=sha256:00
    # via tandemq (pyproject.toml)
Beta_one==2.0 ; python_version < "3.12" \\
    --hash=sha256:11
    # via
    #   alpha
    #   tool
tool==3.0 \\
    --hash=sha256:22
    # via tandemq (pyproject.toml)
"""
PROJECT = {
    "name": "tandemq",
    "license": "Apache-2.0",
    "dependencies": ["alpha>=1"],
    "optional-dependencies": {"more": ["beta.one[x]>=1,<3"], "dev": ["tool"]},
}


def build_twice(directory: Path, engine: str) -> list[list[Path]]:
    """Build in two directories, from files with other dates, with another umask the second time."""
    builds = [release.build_all([engine], directory / "first", DATE)]
    umask = os.umask(0o077)
    try:
        builds.append(release.build_all([engine], directory / "second" / "in" / "another", DATE))
    finally:
        os.umask(umask)
    return builds


def test_sdist_and_python_wheel_have_the_same_bytes_at_each_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = build_twice(tmp_path, "python")
    assert release.differences(first, second) == []
    version = tandemq.__version__
    assert [file.name for file in first] == [f"tandemq-{version}.tar.gz", f"tandemq-{version}-py3-none-any.whl"]
    assert release.sdist_faults(first[0]) == []
    assert release.wheel_faults(first[1]) == []
    with tarfile.open(first[0]) as archive:
        assert {(member.mtime, member.uid, member.uname) for member in archive.getmembers()} == {(DATE, 0, "")}
    second[1].write_bytes(second[1].read_bytes() + b"\0")
    assert release.differences(first, second) == [second[1].name]
    faults_are_found(first[0], first[1], tmp_path / "wrong")
    monkeypatch.setattr(release, "CHECKERS", tmp_path / "none")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(DATE))
    assert release.main(["check"]) == 1
    assert "`make release` and `make release-check` make it" in capsys.readouterr().err


def faults_are_found(sdist: Path, wheel: Path, directory: Path) -> None:
    directory.mkdir()
    wrong = directory / wheel.name
    shutil.copy(wheel, wrong)
    with zipfile.ZipFile(wrong, "a") as archive:
        archive.writestr("tests/test_x.py", "")
        archive.writestr("tandemq/_engine.cpython-311-x86_64-linux-gnu.so", "")
    assert release.wheel_faults(wrong) == [f"{wheel.name} has tests", f"{wheel.name} has 1 compiled engines"]
    with tarfile.open(sdist) as source, tarfile.open(directory / sdist.name, "w:gz") as target:
        for member in source.getmembers():
            if not member.name.endswith("/engine.pyx"):
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
        target.addfile(tarfile.TarInfo("elsewhere/file"))
    assert release.sdist_faults(directory / sdist.name) == [
        f"{sdist.name} has elsewhere/file",
        f"{sdist.name} lacks tandemq-{tandemq.__version__}/src/tandemq/engine/engine.pyx",
    ]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_compiled_wheel_has_the_same_bytes_at_each_build(tmp_path: Path) -> None:
    first, second = build_twice(tmp_path, "compiled")
    assert release.differences(first, second) == []
    assert release.wheel_faults(first[1]) == []


def test_build_that_fails_shows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "setup.py").write_text('raise SystemExit("no cc")')
    monkeypatch.setattr(release, "ROOT", source)
    monkeypatch.setattr(release, "SOURCES", ("setup.py",))
    with pytest.raises(release.Failure, match=r"build_sdist failed(.|\n)*no cc"):
        release.build_sdist(tmp_path / "target", DATE)


def test_date_is_that_of_the_environment_or_of_the_last_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert release.release_date({"SOURCE_DATE_EPOCH": "7"}) == 7
    with pytest.raises(release.Failure, match="'now', not a number"):
        release.release_date({"SOURCE_DATE_EPOCH": "now"})
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(release.Failure, match="set SOURCE_DATE_EPOCH"):
        release.release_date({})


def test_version_is_the_same_everywhere() -> None:
    version = tandemq.__version__
    assert release.version_faults((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), None) == []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*")]
    told = {
        path.name: re.findall(r"\btandemq[ /=-]{1,2}v?(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"))
        for path in pages
    }
    major, minor, _ = version.split(".")
    following = f"{major}.{int(minor) + 1}.0"
    assert set(told.pop("upgrade.md")) <= {version, following}, "the page installs the next version beside this one"
    assert {name: found for name, found in told.items() if set(found) - {version}} == {}
    assert 'version = { attr = "tandemq.__version__" }' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def commands_from_an_index(page: str) -> list[str]:
    """Return the commands in blocks of a page that install TandemQ by its name."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.search(r"pip install\b.*[ '\"]tandemq(?![\w./-])", line)]


def test_pages_install_from_files_until_a_release_is_published() -> None:
    assert commands_from_an_index("```sh\npip install 'tandemq[spark]'\nbin/pip install tandemq x\n```\n") != []
    assert commands_from_an_index("```sh\npip install '.[spark]'\npip install dist/tandemq-1.whl\n```\n") == []
    if "(unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]:
        pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        told = {page.name: commands_from_an_index(page.read_text(encoding="utf-8")) for page in pages}
        assert {name: found for name, found in told.items() if found} == {}


def test_release_needs_the_tag_of_its_version_and_a_dated_changelog() -> None:
    version = tandemq.__version__
    heading = f"# Changelog\n\n## {version} (2026-12-01)\n"
    assert release.version_faults(heading, f"v{version}") == []
    assert release.version_faults(heading, "v9.9.9") == [f"the tag is v9.9.9, not v{version}"]
    assert release.version_faults(f"## {version} (unreleased)\n", f"v{version}") == [
        f"CHANGELOG.md calls {version} unreleased"
    ]
    assert release.version_faults("## 9.9.9\n", None) == [f"CHANGELOG.md begins with 9.9.9, not {version}"]
    assert release.version_faults("", None) == [f"CHANGELOG.md begins with no version, not {version}"]


def test_bill_has_what_the_package_and_its_extras_need(tmp_path: Path) -> None:
    for name in sbom.HTMX_FILES:
        (tmp_path / name).write_text(name)
    bill = sbom.bill(PROJECT, sbom.read_locks([LOCK]), tmp_path, DATE)
    assert [(c["name"], c["version"], c.get("scope")) for c in bill["components"]] == [
        ("htmx.org", sbom.HTMX_VERSION, None),
        ("alpha", "1.0", "required"),
        ("beta-one", "2.0", "required"),
    ]
    assert bill["dependencies"][1:] == [
        {"ref": "pkg:pypi/alpha@1.0", "dependsOn": ["pkg:pypi/beta-one@2.0"]},
        {"ref": "pkg:pypi/beta-one@2.0", "dependsOn": []},
    ]
    with pytest.raises(sbom.Failure, match="no lock has alpha, beta-one"):
        sbom.bill(PROJECT, {}, tmp_path, DATE)


def test_bill_of_this_repository_is_complete_and_always_the_same() -> None:
    bill = json.loads(sbom.text(DATE))
    assert sbom.text(DATE) == sbom.text(DATE)
    parts = {part["name"]: part for part in bill["components"]}
    assert {name for name, part in parts.items() if part.get("scope") == "required"} >= {
        "click",
        "isal",
        "numpy",
        "rich",
    }
    assert parts["pyspark"]["properties"] == [{"name": "tandemq:extra", "value": "spark"}]
    assert not parts.keys() & {"pytest", "ruff", "playwright", "zensical"}
    refs = {part["bom-ref"] for part in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {row["ref"] for row in bill["dependencies"]} | {parts["htmx.org"]["bom-ref"]} == refs
    assert {ref for row in bill["dependencies"] for ref in row["dependsOn"]} <= refs
    static = ROOT / "src" / "tandemq" / "console" / "static"
    told = (ROOT / "docs" / "decisions" / "0017-console.md").read_text(encoding="utf-8")
    assert f"htmx {sbom.HTMX_VERSION} " in told
    assert {path.name for path in static.glob("*.min.js")} == set(sbom.HTMX_FILES)
    digest = hashlib.sha256((static / "htmx.min.js").read_bytes()).hexdigest()
    assert parts["htmx.org"]["components"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_packages_for_arm64_are_those_of_the_lock() -> None:
    chosen = arm64.blocks_of(LOCK, sbom.reached({"alpha"}, sbom.read_locks([LOCK])))
    assert re.findall(r"^\w+==", chosen, re.MULTILINE) == ["alpha==", "Beta_one=="]
    assert chosen.count("--hash=") == 2
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([\w.-]+)==", arm64.blocks_of(lock, arm64.PACKAGES), re.MULTILINE))
    assert pinned == arm64.PACKAGES


def test_arm64_names_the_packages_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert arm64.main([]) == 1
    assert "apt-get install --no-install-recommends mmdebstrap gcc-aarch64-linux-gnu" in capsys.readouterr().err


def test_trial_of_an_installation_keeps_the_repository_out() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/src", "TANDEMQ_ENGINE": "python", "PIP_CERT": "/c", "SPARK_HOME": "/s"}
    assert sorted(try_install.environment(given)) == ["PATH", "PIP_CERT"]
    assert try_install.requirement(Path("/a/b.whl"), ["console", "spark"]) == "/a/b.whl[console,spark]"
    assert try_install.requirement(Path("/a/b.whl"), []) == "/a/b.whl"
    assert try_install.engine_of("tandemq 1.2.3, compiled engine\n") == "compiled"
    with pytest.raises(try_install.Failure, match="printed: Usage"):
        try_install.engine_of("Usage: tandemq\n")


def test_trial_of_an_installation_shows_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert try_install.main([str(tmp_path / "none.whl")]) == 2
    assert "`make release` builds" in capfd.readouterr().err
    wheel = tmp_path / "tandemq-0-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr(sys, "executable", "false")
    assert try_install.main([str(wheel), "--extra", "console"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("FAILED  tandemq-0-py3-none-any.whl[console]  Python 3.")
    assert "exit status 1" in told
    with pytest.raises(try_install.Failure, match="not finished after 0 s"):
        try_install.run("sleep", "60", cwd=tmp_path, timeout_s=0.1)


def test_trial_uses_a_cluster_that_runs(tmp_path: Path) -> None:
    try_install.use(Path(sys.executable).parent, tmp_path, ["console", "proxy"])


@pytest.mark.parametrize(
    ("script", "fault"), [("exit 1", "did not become ready"), ("echo '{}'; exit 4", "stopped with 4")]
)
def test_cluster_that_fails_fails_the_trial(tmp_path: Path, script: str, fault: str) -> None:
    command = tmp_path / "tandemq"
    command.write_text(f"#!/bin/sh\necho why >&2\n{script}\n")
    command.chmod(0o755)
    with pytest.raises(try_install.Failure, match=f"{fault}(.|\n)*why"), try_install.cluster(command, tmp_path, []):
        subprocess.run(["true"], check=True)


@pytest.mark.parametrize("tool", [release, sbom, arm64, try_install], ids=lambda tool: str(tool.__name__))
def test_tools_of_releases_have_help(tool: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(["--help"])  # type: ignore[attr-defined]
    assert ended.value.code == 0
    assert "usage: python" in capsys.readouterr().out
