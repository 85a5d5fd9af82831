"""A name server that stops: GO_AWAY to clients that understand it, closed connections to the others."""

from pathlib import Path

from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.nameserver.driver import Driver

JAVA_5_3_1, JAVA_5_5_0 = 475, 513


def test_name_server_that_stops_sends_new_clients_away(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    for link in (1, 2, 3, 4):
        driver.open(link)
    driver.register(1)
    driver.route(2, "TopicA", version=JAVA_5_5_0)
    driver.route(3, "TopicA", version=JAVA_5_3_1)
    driver.node.stop()
    assert not driver.node.is_left and driver.node.deadline_ms() is None
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TopicA"}, version=JAVA_5_5_0)
    answer = driver.ask(2, request)
    assert (answer.code, answer.remark) == (ResponseCode.GO_AWAY, "please go away")
    assert driver.node.is_left, "brokers and clients that do not understand it are not waited for"
    request.version = JAVA_5_3_1
    for link, refused in ((3, request), (4, Command(RequestCode.TANDEM_REGISTRY_PING))):
        answers, turn = driver.raw(link, 2 * encode_command(refused))
        assert (answers, turn.closes) == ([], [(link, "the name server is stopping")])
