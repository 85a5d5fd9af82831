"""Locations of lakes: a directory of a file system, or a URL of an object store or of HDFS.

    /data/lake, file:///data/lake                  a local or mounted file system
    s3://bucket/lake, s3a://bucket/lake            Amazon S3, or a store that speaks its protocol
    gs://bucket/lake                               Google Cloud Storage
    abfss://container@account.dfs.…/lake, abfs://  Azure Data Lake Storage
    hdfs://name-node:8020/lake                     HDFS
    iceberg://catalogue/namespace.table            an Iceberg table, whose directory its catalogue knows

Remote files are read and written through the file systems of `deltalake`, which also commits to the table: one library,
one set of options. A location is sent to tasks with its options; `repr` and `str` show neither options nor secrets.

Source: docs/guides/pipeline-lakes.md.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.runtime.local_paths import scheme_of
from tandemq.spark.runtime.storage_errors import storage_error

REMOTE = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE", "abfs": "AZURE", "abfss": "AZURE", "hdfs": ""}
"""Supported schemes, and the prefix of their options and environment variables."""
ICEBERG = "iceberg"
"""Scheme of the name of an Iceberg table (`lake.iceberg`), which is no directory."""
SCHEMES = ", ".join(f"{scheme}://" for scheme in ("file", *REMOTE))
SENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_TENANT_ID",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
"""Environment variables of the driver that tasks on other machines get too. Names of files and profiles are not sent,
because they mean something on one machine only."""
SAFE_COMMITS = {"aws_conditional_put": "etag"}
"""Makes a commit to S3 a conditional put (If-None-Match): of two concurrent writers of one version one fails."""
BOUNDED = {"retry_timeout": "60s"}
"""Time for which a request to an object store is repeated."""
_ABANDONED = re.compile(r"(^|/)\.[^/]+\.tmp\.\d+$")
"""Name of a file on HDFS until it is complete."""
UNSAFE = "allow_unsafe_rename"


class FileEntry(NamedTuple):
    """A file in a listing. `name`: in its directory, or in the location."""

    name: str
    size: int
    changed_s: float
    """Seconds since 1970, by the clock of the storage."""


@dataclass(frozen=True, slots=True)
class Location:
    """A directory. `url`: an absolute path, or a URL without a slash at its end. `options`: deltalake's storage
    options."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str | None:
        """Scheme of the URL; None for a local path."""
        return scheme_of(self.url)

    @property
    def is_local(self) -> bool:
        """Whether the directory is on a local or mounted file system."""
        return self.scheme is None

    @property
    def path(self) -> Path:
        """Path of a local directory.

        Raises:
            ConfigError: it is remote.
        """
        if not self.is_local:
            raise ConfigError(f"{self.url} is not a local directory", hint="give one on a mounted file system")
        return Path(self.url)

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.url.rpartition("/")[2]

    def within(self, name: str) -> "Location":
        """Return the location of a directory in the directory."""
        return Location(self.child(name), self.options)

    def child(self, name: str) -> str:
        """Return the path or URL of a file in the directory."""
        return f"{self.url}/{name}"

    def name_of(self, child: str) -> str:
        """Return the name of a file of which `child` has returned the path or URL."""
        return child.removeprefix(f"{self.url}/")

    def storage_options(self) -> dict[str, str] | None:
        """Return the options for deltalake; None for a local directory."""
        return None if self.is_local else dict(self.options)

    @contextmanager
    def errors(self, name: str = "") -> Iterator[None]:
        """Translate errors of the storage. `name`: the file that is accessed.

        Raises:
            TandemError: the cause and a hint, on one line.
        """
        try:
            yield
        except (OSError, ValueError) as error:
            if self.is_local:
                raise
            raise storage_error(self.child(name) if name else self.url, error) from error

    def open_input(self, name: str) -> BinaryIO:
        """Open a file for reading, with random access. Raises as `errors`; FileNotFoundError if it is local."""
        if self.is_local:
            return cast(BinaryIO, pa.OSFile(self.child(name), "rb"))
        with self.errors(name):
            return cast(BinaryIO, self._files().open_input_file(name))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        try:
            with self.errors(name), self.open_input(name) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except LocalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def open_replacement(self, name: str) -> BinaryIO:
        """Open a file that takes the place of a remote one when it is closed; `write` takes `bytes`. One that is
        dropped without being closed changes nothing."""
        assert not self.is_local, "a local file has a name of its own until it is complete"
        with self.errors(name):
            # Arrow's own file would be closed, and thereby take the other's place, also after an error.
            return cast(BinaryIO, self._files().handler._handler.open_output_stream(name, None))  # noqa: SLF001

    def open_output(self, name: str) -> BinaryIO:
        """Open a new file for Arrow's writers. A remote file appears when it is closed, complete.

        The remote file's own method `write` fails, because deltalake accepts `bytes` only, which Arrow's writers pass.
        """
        if self.is_local:
            return cast(BinaryIO, pa.OSFile(self.child(name), "wb"))
        with self.errors():
            return cast(BinaryIO, self._files().open_output_stream(name))

    def sync(self, name: str) -> None:
        """Make a closed file durable; a remote file is durable when its upload has ended."""
        if self.is_local:
            with open(Path(self.url) / name, "rb") as file:
                os.fsync(file.fileno())

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        if self.is_local:
            (Path(self.url) / name).unlink(missing_ok=True)
        else:
            with self.errors():
                if self._is_file(name):
                    self._files().delete_file(name)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError if there is none."""
        if self.is_local:
            return (Path(self.url) / name).stat().st_size
        with self.errors():
            found = self._files().get_file_info([name])[0]
        if not found.is_file:
            raise FileNotFoundError(self.child(name))
        return int(found.size)

    def names(self) -> list[str]:
        """Return the names of the files and directories in the directory; none if it does not exist."""
        if self.is_local:
            root = Path(self.url)
            return sorted(child.name for child in root.iterdir()) if root.exists() else []
        return sorted({info.path.strip("/").partition("/")[0] for info in self._listed("")} - {""})

    def files(self) -> list[FileEntry]:
        """Return the files in the directory, by name, without those in its directories; none if it does not exist."""
        if self.is_local:
            return sorted(_local_files(Path(self.url)))
        return sorted(_entry(info) for info in self._listed("") if info.is_file and "/" not in info.path.strip("/"))

    def entries(self, names: Iterable[str]) -> list[FileEntry]:
        """Return the entries of the existing files among `names`, which may have directories."""
        listed = {file.name: file for file in self.files()}
        found = [listed[name] for name in names if name in listed]
        nested = [name for name in names if "/" in name]
        if self.is_local:
            return found + [
                file._replace(name=name)
                for name in nested
                for file in _local_files(Path(self.child(name)).parent)
                if file.name == name.rpartition("/")[2]
            ]
        with self.errors():
            infos = self._files().get_file_info(nested) if nested else []
        return found + [_entry(info) for info in infos if info.is_file]

    def abandoned(self, before_s: float) -> list[str]:
        """Return the names of files on HDFS in the directory and in `_delta_log` that their writers had not given
        their names when they died or lost a race, and that were last changed before a time. Object stores keep no such
        files, local ones have other names."""
        if self.scheme != "hdfs":
            return []
        found = [info for directory in ("", "_delta_log") for info in self._listed(directory)]
        return [info.path for info in found if _ABANDONED.search(info.path) and info.mtime.timestamp() <= before_s]

    def _listed(self, directory: str) -> list[Any]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415  # slow to import, and needed for remote lakes only

        with self.errors():
            return list(self._files().get_file_info(FileSelector(directory, allow_not_found=True)))

    def _is_file(self, name: str) -> bool:
        return bool(self._files().get_file_info([name])[0].is_file)

    def _files(self) -> Any:
        if self.scheme == ICEBERG:
            raise ConfigError(f"{self.url} is an Iceberg table", hint="a directory or the URL of one is needed here")
        return _filesystem(self.url, tuple(sorted(self.options.items())))


Place = str | Path | Location
"""Types that callers may give for a location."""


def _entry(found: Any) -> FileEntry:
    return FileEntry(found.path.strip("/"), int(found.size), found.mtime.timestamp() if found.mtime is not None else 0)


def _local_files(directory: Path) -> Iterator[FileEntry]:
    for path in directory.iterdir() if directory.exists() else ():
        with suppress(FileNotFoundError):  # deleted since it was listed
            found = path.stat()
            if S_ISREG(found.st_mode):
                yield FileEntry(path.name, found.st_size, found.st_mtime)


@lru_cache(maxsize=8)
def _filesystem(url: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Return the file system below a URL; a process keeps its connections."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415  # slow to import, and needed for remote lakes only
    from pyarrow.fs import PyFileSystem  # noqa: PLC0415

    return PyFileSystem(DeltaStorageHandler(url, dict(options)))


def locate(given: Place, what: str, options: Mapping[str, str] | None = None) -> Location:
    """Return the location that a path or URL names.

    Args:
        what: its name in error messages.
        options: storage options; those of the environment (`SENT`) are added for names that are not given.
    Raises:
        ConfigError: the scheme is unknown, the URL is malformed or contains credentials, or an option is unsafe.
    """
    if isinstance(given, Location):
        return given
    scheme = scheme_of(given)
    if scheme is None:
        return Location(str(Path(given).absolute()))
    text = re.sub(r"^([^:]+):/(?!/)", r"\1://", str(given)) if scheme != "file" else str(given)
    if scheme.lower() == "file":
        return Location(str(_file_path(text, what)))
    if scheme == ICEBERG:
        return Location(_table_name(text, what), dict(options or {}))
    if scheme not in REMOTE:
        raise ConfigError(f"{what} {text}: the scheme {scheme}:// is not supported", hint=f"a path, or {SCHEMES}")
    _check_url(text, what)
    found = {name.lower(): value for name, value in (options or {}).items()}
    if any(name.endswith(UNSAFE) for name in found):
        raise ConfigError(
            f"{what} {text}: {UNSAFE} would let concurrent writers overwrite each other's commits", hint="leave it out"
        )
    prefix = REMOTE[scheme]
    for name in SENT if prefix else ():
        short = name.lower().removeprefix(f"{prefix.lower()}_")
        if name.startswith(prefix) and name in os.environ and not {name.lower(), short} & found.keys():
            found[name.lower()] = os.environ[name]
    return Location(text.rstrip("/"), (SAFE_COMMITS if prefix == "AWS" else {}) | (BOUNDED if prefix else {}) | found)


def _file_path(text: str, what: str) -> Path:
    parts = urlsplit(re.sub(r"^([^:]+):/(?!/)", r"\1:///", text))
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{what} {text} names the host {parts.netloc!r}", hint="file:///path has three slashes")
    return Path(unquote(parts.path))


def _table_name(text: str, what: str) -> str:
    """Return the name of an Iceberg table, which has a catalogue and at least one namespace."""
    if not re.fullmatch(r"iceberg://[\w-]+/[\w-]+(\.[\w-]+)+", text):
        shown = re.sub(r"://.*@", "://…@", text)
        raise ConfigError(f"{what} {shown} names no Iceberg table", hint="iceberg://CATALOGUE/NAMESPACE.TABLE")
    return text


def _check_url(text: str, what: str) -> None:
    parts = urlsplit(text)
    if parts.password is not None:
        raise ConfigError(
            f"{what}: credentials do not belong into a URL, which is written to logs",
            hint="--storage-option, or environment variables",
        )
    if not parts.netloc:
        raise ConfigError(f"{what} {text} names no bucket or host", hint="scheme://bucket/directory")
    if not parts.path.strip("/"):
        raise ConfigError(f"{what} {text} names no directory", hint="a lake needs a directory of its own in the bucket")
    if parts.query or parts.fragment or "%" in text:
        raise ConfigError(f"{what} {text} must not contain ?, # or %", hint="give another directory")


def parse_storage_options(given: Mapping[str, str] | tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE words.

    Raises:
        ConfigError: a word has another form; its value is not shown.
    """
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, str] = {}
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z0-9_.]+", name):
            raise ConfigError(
                "--storage-option takes NAME=VALUE", hint="--storage-option aws_endpoint_url=https://host:9000"
            )
        found[name] = value
    return found
