"""The files of accounts on a disk: where they are, which of them count, and when they are read."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.config.yaml_subset import FILE_BYTES_MAX
from tandemq.errors import ConfigError
from tandemq.run.account_files import AccountDirectory, open_account_files, with_account_files


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(path)
    return path


def names(found: Mapping[str, object] | None, directory: Path) -> list[str]:
    assert found is not None
    return [str(Path(path).relative_to(directory)) for path in found]


def test_all_files_below_acl_count_before_the_default_one(tmp_path: Path) -> None:
    for name in ("plain_acl.yml", "acl/b.yml", "acl/a.yaml", "acl/teams/c.yml", "acl/.d.yml", "acl/e.txt", "other.yml"):
        write(tmp_path / name)
    found = names(AccountDirectory(str(tmp_path)).read(), tmp_path)
    assert found == ["acl/a.yaml", "acl/b.yml", "acl/teams/c.yml", "plain_acl.yml"]


def test_files_that_kubernetes_links_count_once(tmp_path: Path) -> None:
    write(tmp_path / "acl" / "..2024" / "a.yml", "accounts:")
    (tmp_path / "acl" / "..data").symlink_to("..2024")
    (tmp_path / "acl" / "a.yml").symlink_to("..data/a.yml")
    assert names(AccountDirectory(str(tmp_path)).read(), tmp_path) == ["acl/a.yml"]


def test_files_are_read_again_when_one_changes_comes_or_goes(tmp_path: Path) -> None:
    default = write(tmp_path / "plain_acl.yml", "one")
    directory = AccountDirectory(str(tmp_path))
    assert directory.read() == {str(default): b"one"}
    assert directory.read() is None
    write(default, "two")
    assert directory.read() == {str(default): b"two"}
    more = write(tmp_path / "acl" / "more.yml")
    assert directory.read() == {str(more): b"", str(default): b"two"}
    default.unlink()
    assert directory.read() == {str(more): b""}
    more.unlink()
    assert directory.read() == {}
    assert directory.read() is None


def test_a_file_that_cannot_be_read_is_reported_beside_the_others(tmp_path: Path) -> None:
    default = write(tmp_path / "plain_acl.yml", "one")
    os.mkfifo(tmp_path / "acl.fifo")
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "pipe.yml").symlink_to(tmp_path / "acl.fifo")
    (tmp_path / "acl" / "lost.yml").symlink_to(tmp_path / "nowhere")
    found = dict(AccountDirectory(str(tmp_path)).read() or {})
    assert found.pop(str(default)) == b"one"
    assert sorted(str(error) for error in found.values()) == ["it is not a regular file"] * 2


def test_of_a_large_file_no_more_is_read_than_shows_that_it_is(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", "#" * (FILE_BYTES_MAX + 1_000))
    (content,) = (AccountDirectory(str(tmp_path)).read() or {}).values()
    assert isinstance(content, bytes) and len(content) == FILE_BYTES_MAX + 1


def test_all_files_together_have_a_maximum(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    for number in range(17):
        (tmp_path / "acl" / f"{number}.yml").write_bytes(b"#" * FILE_BYTES_MAX)
    with pytest.raises(ConfigError, match="the maximum is"):
        AccountDirectory(str(tmp_path)).read()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        AccountDirectory(str(tmp_path / "conf")).read()


def test_a_file_that_all_users_can_read_is_reported_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = write(tmp_path / "plain_acl.yml")
    directory = AccountDirectory(str(tmp_path))
    directory.read()
    assert not caplog.text
    path.chmod(0o644)
    directory.read()
    directory.read()
    assert caplog.text.count("all users of this machine can read it") == 1


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({"acl_enable": True, "acl_path": "/given"}, {"ROCKETMQ_HOME": "/opt/rocketmq"}, "/given"),
        ({"acl_enable": True}, {"ROCKETMQ_HOME": "/opt/rocketmq"}, "/opt/rocketmq/conf"),
        ({"acl_enable": True}, {}, "/etc/tandemq"),
        ({}, {"ROCKETMQ_HOME": "/opt/rocketmq"}, ""),
    ],
)
def test_files_are_looked_for_where_java_does_or_beside_the_settings(
    settings: dict[str, object], environment: dict[str, str], expected: str
) -> None:
    config = with_account_files(BrokerConfig(**settings), "/etc/tandemq/broker.conf", environment)  # type: ignore[arg-type]
    assert config.acl_path == expected


def test_acl_without_a_place_of_files_is_refused() -> None:
    config = with_account_files(BrokerConfig(acl_enable=True), None, {})
    with pytest.raises(ConfigError, match="aclPath"):
        open_account_files(config)
    assert open_account_files(BrokerConfig()) is None
