"""Files of accounts (ACL 1.0) on this machine's disk: where they are, and what has changed.

Source: docs/reference/access.md; RocketMQ PlainPermissionManager, AclFileWatchService.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tandemq.config.account_files import DEFAULT_FILE, DIRECTORY, ENDINGS
from tandemq.config.settings import BrokerConfig
from tandemq.config.yaml_subset import FILE_BYTES_MAX
from tandemq.errors import ConfigError

log = logging.getLogger(__name__)
FILES_MAX = 1_000
BYTES_MAX = 16 << 20
"""Maximum size of all files together."""
DEPTH_MAX = 8
HOME = "ROCKETMQ_HOME"
_State = tuple[int, ...]


class AccountDirectory:
    """The files of one directory; see `AccountFiles`."""

    def __init__(self, path: str) -> None:
        """Read nothing yet."""
        self._path = Path(path).expanduser()
        self._known: dict[str, _State] | None = None

    def read(self) -> Mapping[str, bytes | ConfigError] | None:
        """Return the content of each file, or why it cannot be read; None if nothing changed since the last call.

        Those below `acl/` come first, in the order of their names; RocketMQ has no order.

        Raises:
            ConfigError: the directory cannot be listed, or its files are too large.
        """
        paths = account_paths(self._path)
        states = {str(path): _state(path) for path in paths}
        if states == self._known:
            return None
        size = sum(state[-1] for state in states.values())
        if size > BYTES_MAX:
            raise ConfigError(f"aclPath {self._path}: the files have {size} bytes, the maximum is {BYTES_MAX}")
        for path in paths:
            if states[str(path)] != (self._known or {}).get(str(path)):
                _warn_of_readers(path)
        found = {str(path): read_account_file(path) for path in paths}
        self._known = states  # of before the files were read: a change in between is seen the next time
        return found


def account_paths(directory: Path) -> list[Path]:
    """Return the files of accounts in a directory.

    Raises:
        ConfigError: it does not exist, cannot be listed, or has more than `FILES_MAX`.
    """
    if not directory.is_dir():
        raise ConfigError(f"aclPath {directory}: it is no directory", hint=f"name the one that has {DEFAULT_FILE}")
    found = sorted(_below(directory / DIRECTORY, 1))
    default = directory / DEFAULT_FILE
    found += [default] if default.exists() else []
    if len(found) > FILES_MAX:
        raise ConfigError(f"aclPath {directory}: there are {len(found)} files, the maximum is {FILES_MAX}")
    return found


def _below(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"aclPath {directory}: {os.strerror(error.errno or 0)}") from error
    for entry in entries:
        if entry.name.startswith("."):  # drafts of editors, and directories that Kubernetes links to
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth < DEPTH_MAX:
                yield from _below(Path(entry.path), depth + 1)
        elif entry.name.endswith(ENDINGS):
            yield Path(entry.path)


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError as error:
        return (-1, error.errno or 0)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _warn_of_readers(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_mode & stat.S_IROTH:
            log.warning("access: %s has keys, and all users of this machine can read it; chmod 640", path)


def read_account_file(path: Path) -> bytes | ConfigError:
    """Return the content of a file, one byte too much if it is too large, or why it cannot be read."""
    try:
        if not path.is_file():
            return ConfigError("it is not a regular file")
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return ConfigError(os.strerror(error.errno or 0), hint="the user of the broker needs to read it")


def with_account_files(config: BrokerConfig, config_file: str | None, environment: Mapping[str, str]) -> BrokerConfig:
    """Return settings with the directory of the files of accounts.

    Without `aclPath` it is `conf` of ROCKETMQ_HOME, as in RocketMQ, else the directory of the broker's own file.
    """
    if not config.acl_enable or config.acl_path:
        return config
    home = environment.get(HOME, "")
    if home:
        return replace(config, acl_path=str(Path(home) / "conf"))
    return config if config_file is None else replace(config, acl_path=str(Path(config_file).absolute().parent))


def open_account_files(config: BrokerConfig) -> AccountDirectory | None:
    """Return the files of accounts; None without `aclEnable`.

    Raises:
        ConfigError: it is not known where they are.
    """
    if not config.acl_enable:
        return None
    if not config.acl_path:
        raise ConfigError(
            "aclEnable: it is not known where the files of accounts are", hint=f"set aclPath, where {DEFAULT_FILE} is"
        )
    return AccountDirectory(config.acl_path)
