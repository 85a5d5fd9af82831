"""A slave by its settings that has no connection to its master looks for it at the name servers each second."""

from pathlib import Path

import pytest

from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_RESPONSE, Command
from tests.spec import spec
from tests.unit.broker.harness import Harness

NAME_SERVER = "10.0.0.9:9876"
MASTER, HA_MASTER = "10.0.0.2:10911", "10.0.0.2:10912"
JAVA_MASTER_NAMED = b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}}'
NOBODY_NAMED = b'{"brokerMemberGroup":{"brokerAddrs":{1:"10.0.0.3:10911"},"brokerName":"a","cluster":"c"}}'


class Seeking:
    """A slave, and a name server whose responses the test chooses."""

    def __init__(self, path: Path) -> None:
        self.slave = Harness(path, name_servers=(NAME_SERVER,), role="SLAVE", broker_id=1, ha_protocol="tandemq")
        [connect] = [found for found in self.slave.connects if found.address == NAME_SERVER]
        self.slave.connects.clear()
        self.link = connect.link
        self.slave.open(self.link, connect.kind, NAME_SERVER)
        self.named = NOBODY_NAMED
        self.code = ResponseCode.SUCCESS
        self.lookups = self.registrations = 0

    def run(self, ms: int) -> None:
        """Advance the time in steps of 100 ms, and answer."""
        for _ in range(ms // 100):
            self.slave.pass_time(100)
            for request in self.slave.take_requests(RequestCode.GET_BROKER_MEMBER_GROUP, link=self.link):
                self.lookups += 1
                self.slave.reply(request, link=self.link, code=self.code, body=self.named)
            for request in self.slave.take_requests(RequestCode.REGISTER_BROKER, link=self.link):
                self.registrations += 1
                fields = {"masterAddr": MASTER, "haServerAddr": HA_MASTER} if self.named is JAVA_MASTER_NAMED else {}
                answer = Command(ResponseCode.SUCCESS, request.opaque, FLAG_RESPONSE, fields=fields)
                self.slave.turn([(self.link, encode_command(answer))])

    @property
    def attempts(self) -> list[str]:
        """Addresses to which the slave connected as a slave."""
        return [found.address for found in self.slave.connects if found.kind is LinkKind.HA_SLAVE]


@spec("H03")
def test_master_that_starts_after_its_slave_is_connected_within_two_seconds(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    seeking.run(5_000)
    assert (seeking.attempts, seeking.registrations) == ([], 1)
    seeking.named = JAVA_MASTER_NAMED
    seeking.run(1_500)
    assert (seeking.attempts, seeking.registrations) == ([HA_MASTER], 2)


def test_master_that_comes_back_at_its_address_is_connected_at_once(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    seeking.named = JAVA_MASTER_NAMED
    seeking.run(2_000)
    slave = seeking.slave
    [connect] = [found for found in slave.connects if found.kind is LinkKind.HA_SLAVE]
    slave.open(connect.link, connect.kind, HA_MASTER)
    before = seeking.lookups
    seeking.run(5_000)
    assert seeking.lookups == before, "a slave that is connected asks nothing"
    seeking.named = NOBODY_NAMED
    slave.connects.clear()
    slave.close(connect.link)
    seeking.run(7_000)  # One more attempt, refused, and the next in 5 s.
    for connect in [found for found in slave.connects if found.kind is LinkKind.HA_SLAVE]:
        slave.close(connect.link, "refused")
    slave.connects.clear()
    seeking.run(1_000)
    assert seeking.attempts == []
    seeking.named = JAVA_MASTER_NAMED
    seeking.run(1_500)
    assert seeking.attempts == [HA_MASTER]


def test_name_server_that_does_not_know_the_request_is_asked_once(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    seeking.code, seeking.named = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b""
    seeking.run(20_000)
    assert seeking.lookups == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"brokerMemberGroup":null}', b'{"brokerMemberGroup":{}}'])
def test_damaged_answers_are_ignored(tmp_path: Path, body: bytes) -> None:
    seeking = Seeking(tmp_path)
    seeking.named = body
    seeking.run(3_000)
    assert seeking.lookups == 3
    seeking.named = JAVA_MASTER_NAMED
    seeking.run(1_500)
    assert seeking.attempts == [HA_MASTER]


def test_name_server_that_repeats_a_stale_master_gets_one_registration(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    seeking.named = JAVA_MASTER_NAMED
    seeking.run(20_000)
    assert seeking.registrations == 2
    assert seeking.lookups >= 15


def test_master_asks_nothing(tmp_path: Path) -> None:
    broker = Harness(tmp_path, name_servers=(NAME_SERVER,))
    [connect] = broker.connects
    broker.open(connect.link, connect.kind, NAME_SERVER)
    broker.pass_time(10_000)
    assert broker.take_requests(RequestCode.GET_BROKER_MEMBER_GROUP, link=connect.link) == []
