"""A name server that checks users, with broker, clients and commands as processes; credentials of its metrics port."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import BlockingConnection
from tandemq.config.settings import NameServerConfig
from tandemq.errors import TandemError
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.nameserver import NameServerProcess
from tandemq.run.secret import make_secret_file
from tests.blackbox.in_process import running
from tests.blackbox.programs import WAIT_S, Program, wait_until
from tests.blackbox.test_accounts import write

ADMIN, SHOP, LATER = (Credentials(name, f"{name}-key") for name in ("admin-1", "shop-app", "later-app"))
TOKEN = "a-token-of-prometheus"


def accounts(*users: Credentials) -> str:
    return "accounts:\n" + "".join(
        f"- accessKey: {user.access_key}\n  secretKey: {user.secret_key}\n  admin: {str(user is ADMIN).lower()}\n"
        for user in users
    )


def may_send(server: NameServerProcess, user: Credentials) -> bool:
    try:
        with BlockingProducer(server.address, group="p", credentials=user) as producer:
            producer.send(Message("Orders", b"body"))
    except TandemError as error:
        text = str(error)
    else:
        return True
    assert "authentication failed" in text
    return False


def metrics_status(server: NameServerProcess, token: str) -> int:
    given = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"http://{server.metrics_address}/metrics", headers=given), timeout=WAIT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def checked_by(server: NameServerProcess, user: Credentials | None) -> subprocess.CompletedProcess[str]:
    """Run `tandemq ha check` as a user."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TANDEMQ_")}
    if user is not None:
        environment |= {"TANDEMQ_ACCESS_KEY": user.access_key, "TANDEMQ_SECRET_KEY": user.secret_key}
    command = [sys.executable, "-m", "tandemq", "ha", "check", "--namesrv", server.address]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=WAIT_S)


def test_a_cluster_works_with_a_name_server_that_checks_its_users(
    start: Callable[..., Program], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf, secret, tokens = tmp_path / "conf", make_secret_file(tmp_path / "secret"), tmp_path / "tokens"
    conf.mkdir()
    write(conf / "plain_acl.yml", accounts(ADMIN, SHOP))
    write(tokens, TOKEN)
    config = NameServerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        data_path=str(tmp_path / "names"),
        authentication_enable=True,
        acl_path=str(conf),
        ha_secret_file=str(secret),
        metrics_port=0,
        metrics_credentials_file=str(tokens),
    )
    with running(NameServerProcess(config)) as server:
        unsigned = start("unsigned", namesrvAddr=server.address, brokerName="unsigned")
        wait_until(
            lambda: "authentication failed" in unsigned.log_text(), "the unsigned broker is refused, and says why"
        )
        program = start(
            "broker",
            namesrvAddr=server.address,
            haSecretFile=secret,
            aclEnable="true",
            aclPath=conf,
        )
        wait_until(lambda: "registered as broker-a" in program.log_text(), "the broker is registered")
        assert may_send(server, ADMIN)
        write(conf / "plain_acl.yml", accounts(ADMIN, SHOP, LATER) + "  defaultTopicPerm: PUB\n")
        wait_until(lambda: may_send(server, LATER), "a new account counts at both")
        assert not may_send(server, Credentials("nobody", "nobody-key"))
        with BlockingConnection(server.address, credentials=SHOP) as connection:
            asked = connection.request(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "Orders"}))
            assert asked.code == ResponseCode.SUCCESS
            wiped = Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields={"brokerName": "broker-a"})
            assert connection.request(wiped).code == ResponseCode.NO_PERMISSION
        assert checked_by(server, ADMIN).stdout == "HEALTHY: 1 group, 1 broker\n"
        assert "authentication failed" in checked_by(server, None).stderr
        assert [metrics_status(server, token) for token in ("", "another-token-of-it", TOKEN)] == [401, 401, 200]
    assert "any client" not in caplog.text


def test_a_name_server_that_checks_nobody_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = NameServerConfig(
        listen_port=0, data_path=str(tmp_path / "names"), metrics_port=0, metrics_bind_address="0.0.0.0"
    )
    with running(NameServerProcess(config)) as server:
        warned = checked_by(server, None).stderr
    for place, about in ((caplog.text, f"port {server.port}"), (warned, server.address)):
        assert "authenticationEnabled is off" in place and about in place
        assert "metricsCredentialsFile" in place
