"""The console signs its requests to brokers as one user of the cluster."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli import main
from tandemq.console.server import open_console
from tandemq.console.services import ConsoleSettings
from tandemq.errors import TandemError
from tandemq.groupdb.database import GroupDatabase
from tandemq.model.access import Credentials
from tandemq.model.message import Message
from tandemq.run.local import LocalCluster

USER = Credentials("console", "console-key")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": USER.access_key, "password": USER.secret_key}),
}


def test_all_connections_of_the_console_sign_as_its_user(tmp_path: Path, database: GroupDatabase) -> None:
    async def ask(name_servers: str) -> None:
        settings = ConsoleSettings(credentials=USER)
        assert USER.secret_key not in repr(settings)
        async with open_console(settings, database, name_servers) as console:
            assert "console" in await console.admin.users()
            await console.tables.sample()
            producer = await console.producer()
            await producer.send(Message("Orders", b"one"))
        async with open_console(ConsoleSettings(), database, name_servers) as console:
            with pytest.raises(TandemError, match="authentication failed"):
                await console.admin.users()

    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        asyncio.run(ask(cluster.name_servers))


def test_file_of_a_user_that_is_missing_or_malformed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "console.yml"
    for text in (None, "accessKey: console\n"):
        if text is not None:
            path.write_text(text, encoding="utf-8")
        found = CliRunner().invoke(main, ["console", "--credentials", str(path), "--database", "sqlite://"])
        assert found.exit_code == 2 and f"credentials {path}: " in found.output
