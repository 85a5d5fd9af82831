"""Credentials of the metrics port: tokens and passwords, changes of the file, and files that cannot be used."""

import logging
from base64 import b64encode
from pathlib import Path

import pytest

from tandemq.errors import ConfigError
from tandemq.run.metrics_credentials import CREDENTIALS_MAX, MetricsCredentials

TOKEN, PASSWORD = "t0ken-" + "x" * 20, "pass:word-" + "y" * 20


def write(path: Path, text: str, mode: int = 0o600) -> str:
    draft = path.with_name("draft")
    draft.write_text(text, encoding="latin-1")
    draft.chmod(mode)
    return str(draft.replace(path))


def basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    write(path, f"# scraping\n{TOKEN}\n\nprom:{PASSWORD}\n")
    return path


def test_a_token_or_a_password_is_needed(file: Path) -> None:
    credentials = MetricsCredentials(str(file))
    for good in (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic("prom", PASSWORD)):
        assert credentials.admit(good), good
    wrong = ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}", f"Token {TOKEN}")
    for bad in (*wrong, basic("prom", "x"), basic("other", PASSWORD), basic("", f"prom:{PASSWORD}"), "Bearer é\udc80"):
        assert not credentials.admit(bad), bad


def test_a_changed_file_counts_at_once_and_a_wrong_one_does_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials = MetricsCredentials(str(file))
    write(file, f"{TOKEN}new\n")
    assert credentials.admit(f"Bearer {TOKEN}new") and not credentials.admit(f"Bearer {TOKEN}")
    write(file, "short\n")
    with caplog.at_level(logging.ERROR):
        assert all(credentials.admit(f"Bearer {TOKEN}new") for _ in range(3))
    assert len(caplog.records) == 1 and "previous credentials" in caplog.text and "short" not in caplog.text
    file.unlink()
    assert credentials.admit(f"Bearer {TOKEN}new")
    write(file, TOKEN)
    assert credentials.admit(f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "0 credentials"),
        ("# nothing\n", 0o600, "0 credentials"),
        ("x" * 15, 0o600, "line 1 could be guessed"),
        (f"{TOKEN}\nuser:{'x' * 15}", 0o600, "line 2 could be guessed"),
        (f"Bearer {TOKEN}", 0o600, "line 1 is neither"),
        (f":{PASSWORD}", 0o600, "line 1 is neither"),
        (f"user:{'é' * 20}", 0o600, "line 1 is neither"),
        (f"{TOKEN}\n" * (CREDENTIALS_MAX + 1), 0o600, "33 credentials"),
        ("x" * 70_000, 0o600, "larger than"),
        (TOKEN, 0o644, "all users"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        MetricsCredentials(write(tmp_path / "credentials", text, mode))
    assert TOKEN not in str(found.value)
    with pytest.raises(ConfigError):
        MetricsCredentials(str(tmp_path / "absent"))
