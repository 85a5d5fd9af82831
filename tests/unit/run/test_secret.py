"""The secret file: parsing, refused files, and changes while a broker runs."""

import logging
import stat
from pathlib import Path

import pytest

from tandemq.errors import ConfigError
from tandemq.run.secret import SecretFile, make_secret_file, open_keyring, read_first_line

SECRET, OTHER = "a secret of some length", "another secret of some length"


def write(path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return str(path)


def test_lines_are_secrets_the_first_one_first(tmp_path: Path) -> None:
    path = write(tmp_path / "s", f"# new\n  {SECRET}  \r\n\n{OTHER}\n")
    assert SecretFile(path).secrets() == (SECRET.encode(), OTHER.encode())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no secret"),
        ("# only a comment that is long enough\n\n", "no secret"),
        ("short\n", "less than 16 bytes"),
        (f"{SECRET}\nshort\n", "less than 16 bytes"),
        ("\n".join(f"{SECRET}{n}" for n in range(9)), "9 secrets"),
        (b"x" * 70_000, "larger than"),
    ],
)
def test_file_without_valid_secrets_is_refused(tmp_path: Path, text: str | bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        SecretFile(write(tmp_path / "s", text))
    assert "haSecretFile" in str(caught.value)


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="haSecretFile"):
            SecretFile(str(path))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o606, 0o644, 0o777])
def test_file_accessible_to_all_users_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        SecretFile(write(tmp_path / "s", SECRET, mode))


def test_file_accessible_to_its_group_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert SecretFile(write(tmp_path / "s", SECRET, 0o640)).secrets() == (SECRET.encode(),)
    assert "its group has access to it" in caplog.text


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "s", SECRET)
    file = SecretFile(path)
    write(tmp_path / "new", f"{OTHER}\n{SECRET}\n")
    (tmp_path / "new").replace(path)
    assert file.secrets() == (OTHER.encode(), SECRET.encode())


def test_previous_secrets_are_used_if_the_file_becomes_invalid_with_a_log_line_per_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "s", SECRET)
    file = SecretFile(path)
    write(tmp_path / "s", "short")
    assert file.secrets() == (SECRET.encode(),)
    (tmp_path / "s").unlink()
    assert file.secrets() == (SECRET.encode(),)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_created_file_is_private_and_created_once(tmp_path: Path) -> None:
    path = make_secret_file(tmp_path / "s")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert make_secret_file(path).read_bytes() == before
    assert make_secret_file(tmp_path / "t").read_bytes() != before
    assert len(SecretFile(str(path)).secrets()[0]) == 64
    assert sorted(found.name for found in tmp_path.iterdir()) == ["s", "t"]


def test_keyring_creates_different_nonces(tmp_path: Path) -> None:
    assert open_keyring("") is None
    keyring = open_keyring(str(make_secret_file(tmp_path / "s")))
    assert keyring is not None
    assert len({keyring.nonce() for _ in range(100)}) == 100
    assert len(keyring.nonce()) == 32


def test_first_line_of_a_private_file_is_a_password(tmp_path: Path) -> None:
    assert read_first_line("passwordFile", write(tmp_path / "p", " two words \r\nmore\n")) == " two words "
    for text, mode, what in (
        ("", 0o600, "is empty"),
        ("\nx", 0o600, "is empty"),
        ("x", 0o604, "all users have access"),
    ):
        with pytest.raises(ConfigError, match=what):
            read_first_line("passwordFile", write(tmp_path / "q", text, mode))
    with pytest.raises(ConfigError, match=f"passwordFile {tmp_path / 'none'}: No such file"):
        read_first_line("passwordFile", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="can't decode"):
        read_first_line("passwordFile", write(tmp_path / "r", b"\xff\xfe"))
