"""The tool that runs commands in a new root: what it copies, what it passes on, and what it says when it cannot run."""

import os
import shutil
from pathlib import Path

import pytest

from tools import clean_machine
from tools.clean_machine import (
    ROOT,
    Failure,
    check_machine,
    copy_extra,
    copy_into,
    copy_project,
    named_paths,
    of_suite,
    packages_of,
    passed_on,
)


def test_root_has_the_packages_of_setup_and_no_others() -> None:
    assert packages_of("setup") == ["make", "python3-venv"]
    assert "redis-server" in packages_of("services")


def test_settings_of_package_indexes_are_passed_on_and_nothing_else() -> None:
    given = {
        "PIP_CERT": "/a",
        "HTTPS_PROXY": "http://p",
        "no_proxy": "x",
        "SECRET": "s",
        "PYTHONPATH": "/p",
        "HOME": "/h",
    }
    assert sorted(passed_on(given)) == ["HTTPS_PROXY", "PIP_CERT", "no_proxy"]


def test_files_that_settings_name_are_found(tmp_path: Path) -> None:
    wheels, cert, conf = tmp_path / "wheels", tmp_path / "cert.pem", tmp_path / "pip.conf"
    wheels.mkdir()
    cert.touch()
    conf.write_text(f"[global]\ncert = {cert}\ntimeout = 5\n")
    other = tmp_path / "resolv.conf"
    other.write_text("nameserver 192.0.2.1\n")
    found = named_paths({"PIP_FIND_LINKS": f"{wheels} /nonexistent"}, [conf, other, tmp_path / "none" / "pip.conf"])
    assert list(found) == [wheels, cert]


def test_copy_replaces_a_link_of_the_root_instead_of_writing_through_it(tmp_path: Path) -> None:
    outside, given, root = tmp_path / "outside", tmp_path / "given", tmp_path / "root"
    outside.write_text("of this machine")
    given.write_text("new")
    inside = root / given.relative_to("/")
    inside.parent.mkdir(parents=True)
    inside.symlink_to(outside)
    copy_into(root, given)
    assert (outside.read_text(), inside.read_text(), inside.is_symlink()) == ("of this machine", "new", False)
    shutil.rmtree(root)
    given.unlink()
    given.mkdir()
    (given / "one").touch()
    for _ in range(2):
        copy_into(root, given)
    assert [path.name for path in inside.iterdir()] == ["one"]


def test_files_that_git_lists_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, git = tmp_path / "source", tmp_path / "bin" / "git"
    for path, text in (
        (source / "deep" / "new.py", ""),
        (git, '#!/bin/sh\ntest "$2" = "$GIT_WORKS_AT" || exit 128\nprintf \'deep/new.py\\0deleted.py\\0\'\n'),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(clean_machine, "ROOT", source)
    with pytest.raises(Failure, match="git cannot list the files"):
        copy_project(tmp_path / "target")
    monkeypatch.setenv("GIT_WORKS_AT", str(source))
    assert copy_project(tmp_path / "target") == 1
    assert [path.name for path in (tmp_path / "target").rglob("*.*")] == ["new.py"]


def test_list_of_package_sources_becomes_one_of_the_suite() -> None:
    security = "Types: deb\nURIs: http://m.example/security\nSuites: bookworm-security\nComponents: main\n"
    both = (
        f"{security}\nTypes: deb\nURIs: http://m.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
    )
    assert of_suite(both, "bookworm") == both
    assert of_suite(both, "forky") == "Types: deb\nURIs: http://m.example/debian\nSuites: forky\nComponents: main\n"
    line = "# ours\ndeb [arch=amd64] http://m.example/debian bookworm main\n"
    assert of_suite(line, "trixie").splitlines()[-1] == "deb [arch=amd64] http://m.example/debian trixie main"
    with pytest.raises(Failure, match="names no mirror"):
        of_suite(security, "forky")


def test_ignored_files_are_copied_to_their_place_if_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "dist").mkdir(parents=True)
    (source / "dist" / "a.whl").touch()
    monkeypatch.setattr(clean_machine, "ROOT", source)
    copy_extra(source / "dist", target)
    copy_extra(source / "dist" / "a.whl", target)
    assert [path.relative_to(target).as_posix() for path in target.rglob("*.whl")] == ["dist/a.whl"]
    for wrong in (source / "none", tmp_path):
        with pytest.raises(Failure, match="no such file or directory"):
            copy_extra(wrong, target)


def test_help_names_every_option_and_what_is_missing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        clean_machine.main(["--help"])
    assert ended.value.code == 0
    assert "--keep" in capsys.readouterr().out
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert clean_machine.main(["--", "true"]) == 2
    assert "needs the rights of root" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mmdebstrap" else f"/bin/{name}")
    with pytest.raises(Failure, match="apt-get install mmdebstrap"):
        check_machine(None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    with pytest.raises(Failure, match="name one with --sources"):
        check_machine(ROOT / "none")
