"""The workflows, `.ci/run` and hooks: valid, made of commands that exist, with one list of packages."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
CI_RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
INSTALL = "sh tools/packages.sh install"
ROWS = [
    line.split(None, 2)
    for line in (ROOT / ".ci" / "packages").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
"""Package, targets, command that succeeds if the package is there."""
WITH_PACKAGES = {target for _, targets, _ in ROWS for target in targets.split(",")} - {"setup"}


def steps_of(path: Path) -> list[str]:
    """Return the commands that a workflow runs, one for each value of its matrix."""
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"^ +target: \[(.+)\]$", text, re.MULTILINE)
    found = []
    for step in re.findall(r"^ +- run: (.+)$", text, re.MULTILINE):
        names = ", ".join(targets).split(", ") if "matrix.target" in step else [""]
        found += [step.replace("${{ matrix.target }}", name) for name in names]
    return found


def jobs_of(workflow: str) -> dict[str, str]:
    """Return the text of each job of a workflow, by name."""
    parts = re.split(r"^  ([a-z-]+):\n", workflow.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def needs_of(job: str) -> list[str]:
    """Return the jobs that a job waits for."""
    return re.findall(r"[a-z-]+", "".join(re.findall(r"^    needs: \[(.+)\]$", job, re.MULTILINE)))


def targets_of(steps: list[str]) -> set[str]:
    return {step.split()[1] for step in steps if step.startswith("make ")}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_make_targets_that_exist_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\t" not in text
    if "actions/setup-python" in text:
        assert "\nenv:\n  PYTHON: python3" in text, f"{path.name}: tools/find_python.sh would find another Python"
    steps = steps_of(path)
    assert steps
    for step in steps:
        make, target, *_ = step.split()
        attached = path.name == "release.yml" and step.startswith("gh release create ")
        assert step == INSTALL or attached or (make, target in TARGETS) == ("make", True), f"{path.name}: {step}"
    if targets_of(steps) & WITH_PACKAGES:
        assert INSTALL in steps, f"{path.name} does not install the packages that its targets need"


def test_nightly_workflow_runs_what_make_test_leaves_out() -> None:
    steps = steps_of(ROOT / ".github" / "workflows" / "nightly.yml")
    assert [step for step in steps if step.startswith("make soak seeds=")], "without seeds it would not end"
    assert "make chaos" in steps


def test_workflow_runs_every_step_of_ci_run_and_a_release_waits_for_it() -> None:
    called = re.findall(r"\bmake ([a-z][a-z -]*)(?=[\"\n]| [a-z]+=)", CI_RUN)
    local = {word for words in called for word in words.split()}
    assert {"test", "services", "mutations", "spark", "interop"} < local <= TARGETS
    steps = steps_of(ROOT / ".github" / "workflows" / "ci.yml")
    assert local - {"setup", "setup-spark"} <= targets_of(steps)
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (job,) = re.findall(r"^  (\w+):\n +uses: \./\.github/workflows/ci\.yml$", release, re.MULTILINE)
    assert job in needs_of(jobs_of(release)["publish"])


def test_release_publishes_checked_files_with_provenance() -> None:
    jobs = jobs_of((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert {"tests", "check", "install"} == set(needs_of(jobs["publish"]))
    assert {"source", "wheels"} == set(needs_of(jobs["check"]))
    assert needs_of(jobs["attach"]) == ["publish"]
    checked = [step for name in ("source", "check") for step in re.findall(r"- run: (.+)", jobs[name])]
    assert all(step.endswith(' tag="$GITHUB_REF_NAME"') for step in checked), "the tag and the version have to agree"
    actions = re.findall(r"- uses: ([^@\n]+)@", jobs["publish"])
    assert actions.index("actions/attest-build-provenance") < actions.index("pypa/gh-action-pypi-publish")
    for job in ("publish", "attach"):
        assert "name: facts" in jobs[job], f"{job} lacks the bill of materials and checksums"


def test_jobs_with_a_right_to_write_run_no_code_of_the_repository() -> None:
    writing = {}
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^permissions:\n((?: +\S.*\n)+)", text, re.MULTILINE) == ["  contents: read\n"], path.name
        for name, job in jobs_of(text).items():
            if rights := re.findall(r"^      ([a-z-]+): write$", job, re.MULTILINE):
                writing[path.name, name] = set(rights)
                assert "actions/checkout" not in job, f"{path.name}: {name}"
                assert "make" not in [step.split()[0] for step in re.findall(r"- run: (.+)", job)], (
                    f"{path.name}: {name}"
                )
    assert writing == {
        ("release.yml", "publish"): {"id-token", "attestations"},
        ("release.yml", "attach"): {"contents"},
    }


def test_packages_are_listed_once_and_installed_from_the_list() -> None:
    assert INSTALL in CI_RUN
    for path in (ROOT / ".ci" / "run", *WORKFLOWS):
        assert "apt-get" not in path.read_text(encoding="utf-8"), f"{path.name} has packages of its own"
    assert len({package for package, _, _ in ROWS}) == len(ROWS)
    assert set(re.findall(r"\bneeds-([a-z-]+)", MAKEFILE)) == WITH_PACKAGES <= TARGETS
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for package, targets, _ in ROWS:
        row = re.search(rf"^\| `{package}` \| (.+) \|$", told, re.MULTILINE)
        assert row is not None, f"CONTRIBUTING.md does not name {package}"
        assert re.findall(r"`make ([a-z-]+)`", row[1]) == targets.split(","), package


def test_packages_that_are_missing_are_named_with_the_way_to_install_them(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "packages.sh").write_bytes((ROOT / "tools" / "packages.sh").read_bytes())
    rows = ("# a comment", "there  one,two  true", "absent  two  false", "odd  two,three  command -v none-such")
    (tmp_path / ".ci" / "packages").write_text("\n".join(rows) + "\n")
    for target, code, missing in (
        ("one", 0, None),
        ("two", 1, "absent odd"),
        ("three", 1, "odd"),
        ("on", 2, None),
    ):
        command = ["sh", str(tmp_path / "tools" / "packages.sh"), "check", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, (target, done.stderr)
        if missing is not None:
            assert done.stderr.startswith(f"make {target}: not installed: {missing}\n")
            assert done.stderr.endswith(f"apt-get install --no-install-recommends {missing}\n")


def test_pre_commit_hooks_use_the_tools_of_the_environment() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^ +entry: (.+)$", text, re.MULTILINE)
    assert entries
    assert all(entry.startswith(".venv/bin/python -m ") for entry in entries)
    assert re.findall(r"repo: (\S+)", text) == ["local"]
