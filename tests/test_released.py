"""tools/released.py: which releases there are, what is wrong with a clone, and no wheel but the recorded one."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tools import released
from tools.released import Failure, Release, choose, releases, unpack

ROOT = Path(__file__).resolve().parent.parent
COMMIT, SHA256 = "0123456789abcdef" * 2 + "01234567", "ab" * 32
ENTRY = f'[[release]]\nversion = "1.0"\ncommit = "{COMMIT}"\nsha256 = "{SHA256}"\n'


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(directory: Path) -> Path:
    """Two commits of a file."""
    directory.mkdir()
    git(directory, "init", "--quiet")
    for text in ("first", "second"):
        (directory / "file").write_text(text)
        git(directory, "add", "file")
        git(directory, "commit", "--quiet", "-m", text)
    return directory


def test_releases_are_listed_with_their_commits_and_wheels() -> None:
    listed = releases((ROOT / "releases.toml").read_text(encoding="utf-8"))
    assert listed
    assert choose(None) == listed[-1]
    assert releases(ENTRY + ENTRY.replace("1.0", "1.1"))[-1] == Release("1.1", COMMIT, SHA256)
    with pytest.raises(Failure, match=r"releases.toml has no 9\.9; it has "):
        choose("9.9")
    for text in ("", "[[release", ENTRY.replace("sha256", "sha"), ENTRY + "[[release]]\n"):
        with pytest.raises(Failure, match="has no \\[\\[release\\]\\] with commit, sha256, version"):
            releases(text)
    for old, new in ((COMMIT, COMMIT[:12]), (SHA256, "none")):
        with pytest.raises(Failure, match="commit of 40 and a sha256 of 64 hex digits"):
            releases(ENTRY.replace(old, new))


def test_sources_are_those_of_the_commit(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    first = git(origin, "rev-parse", "HEAD~1")
    date = unpack(first, tmp_path / "tree", origin)
    assert (tmp_path / "tree" / "file").read_text() == "first"
    assert date == int(git(origin, "show", "-s", "--format=%ct", first))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["origin", "tree"]


def test_clone_that_lacks_the_commit_is_told_what_brings_it(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    first = git(origin, "rev-parse", "HEAD~1")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{origin}", "shallow")
    with pytest.raises(Failure, match=f"shallow clone lacks commit {first[:12]}: `git fetch --unshallow` brings it"):
        unpack(first, tmp_path / "tree", tmp_path / "shallow")
    with pytest.raises(Failure, match=f"clone lacks commit {COMMIT[:12]}: `git fetch origin`"):
        unpack(COMMIT, tmp_path / "tree", origin)
    (tmp_path / "archive").mkdir()
    with pytest.raises(Failure, match=r"has no history, so commit .* need a clone made by git"):
        unpack(first, tmp_path / "tree", tmp_path / "archive")
    assert not (tmp_path / "tree").exists()


def test_wheel_with_other_bytes_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "tandemq-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    installed: list[Path | str] = []
    monkeypatch.setattr(released, "_install", lambda _target, _commit: wheel)
    monkeypatch.setattr(released, "_pip", lambda *words: installed.append(words[-1]))
    with pytest.raises(Failure, match=f"SHA-256 {hashlib.sha256(b'wheel').hexdigest()}, and releases.toml records ab"):
        released.install(Release("1.0", COMMIT, SHA256), tmp_path / "releases")
    assert installed == []
    right = Release("1.0", COMMIT, hashlib.sha256(b"wheel").hexdigest())
    made = released.install(right, tmp_path / "releases")
    assert installed == [wheel]
    assert made.python == str(tmp_path / "releases" / f"1.0-{COMMIT[:12]}" / "environment" / "bin" / "python")
    assert released.install(right, tmp_path / "releases") == made
    assert installed == [wheel], "it is there"


def test_tool_has_help_and_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        released.main(["--help"])
    assert ended.value.code == 0
    assert "usage: python -m tools.released" in capsys.readouterr().out
    assert released.main(["--version", "9.9"]) == 1
    assert capsys.readouterr().err.startswith("released: releases.toml has no 9.9; it has ")
