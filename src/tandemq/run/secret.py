"""The file with the secrets of replication: one per line, the first is proven with, all are taken.

It is read again when it has changed, so that a secret is exchanged for another one while everything runs. White space
around a line, empty lines and lines that begin with # do not count.
Source: docs/guides/operations.md, "the secret of replication".
"""

import contextlib
import logging
import os
import secrets
import stat
import time
from pathlib import Path
from random import SystemRandom

from tandemq.errors import ConfigError
from tandemq.replication.authentication import SECRET_BYTES_MIN, Keyring

log = logging.getLogger(__name__)
FILE_BYTES_MAX = 64 * 1024
SECRETS_MAX = 8
SECRET_FILE_NAME = "replication.secret"  # noqa: S105  # no secret, but where it is
"""In the directory of a cluster on one machine."""
SAY_EVERY_S = 60.0
MAKE_ONE = "make one with: umask 077; head -c 32 /dev/urandom | base64 > FILE"


class SecretFile:
    """The secrets as they stand in a file now."""

    def __init__(self, path: str) -> None:
        """Read them for the first time.

        Raises:
            ConfigError: the file cannot be read, others may read it, or there is no good secret in it.
        """
        self._path = Path(path).expanduser()
        self._state: tuple[int, ...] = ()
        self._said_s = -SAY_EVERY_S
        self._secrets: tuple[bytes, ...] = ()
        self._read()

    def secrets(self) -> tuple[bytes, ...]:
        """The secrets, read again if the file has changed; those before if it cannot be used now."""
        try:
            self._read()
        except ConfigError as error:
            if time.monotonic() - self._said_s >= SAY_EVERY_S:
                self._said_s = time.monotonic()
                log.error("replication: the secrets read before are used on: %s", error)
        return self._secrets

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
                if state == self._state:
                    return
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise self._wrong(os.strerror(error.errno or 0), MAKE_ONE) from error
        _check_mode(f"haSecretFile {self._path}", found.st_mode)
        self._secrets = self._parse(data)
        if self._state:
            log.info("replication: haSecretFile %s read again, %d secrets", self._path, len(self._secrets))
        self._state = state

    def _parse(self, data: bytes) -> tuple[bytes, ...]:
        if len(data) > FILE_BYTES_MAX:
            raise self._wrong(f"it is larger than {FILE_BYTES_MAX} bytes", MAKE_ONE)
        lines = [line.strip() for line in data.splitlines()]
        found = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not found:
            raise self._wrong("there is no secret in it", MAKE_ONE)
        if len(found) > SECRETS_MAX:
            raise self._wrong(f"it has {len(found)} lines; {SECRETS_MAX} secrets are allowed", "remove old ones")
        if any(len(secret) < SECRET_BYTES_MIN for secret in found):
            raise self._wrong(f"a secret of less than {SECRET_BYTES_MIN} bytes could be found by trying", MAKE_ONE)
        return found

    def _wrong(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"haSecretFile {self._path}: {what}", hint=hint)


def check_private(key: str, path: str) -> None:
    """Whether a file is for its owner alone; that its group may use it is said.

    Raises:
        ConfigError: it is not, or it cannot be looked at.
    """
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key} {path}: {os.strerror(error.errno or 0)}") from error
    _check_mode(f"{key} {path}", mode)


def _check_mode(what: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{what}: it is no file")
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{what}: everybody here may use it (mode {mode & 0o777:o})", hint="chmod 600 makes it private"
        )
    if mode & stat.S_IRWXG:
        log.warning("replication: %s: its group may use it (mode %o)", what, mode & 0o777)


def open_keyring(path: str) -> Keyring | None:
    """What a broker with this `haSecretFile` proves itself with; None if it is empty.

    Raises:
        ConfigError: as `SecretFile`.
    """
    return Keyring(SecretFile(path).secrets, SystemRandom()) if path else None


def make_secret_file(path: Path) -> Path:
    """Put a fresh secret into a file of mode 600, unless there is a file already; the path."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(32)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path
