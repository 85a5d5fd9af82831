"""Brokers that reach each other and a name server, which the test plays: requests of tools, producers and consumers.

brokers = WiredBrokers(tmp_path, "a", "b")
brokers.create("S", {0: [segment(0, "a", 0, 0)]})
brokers.ask("a", RequestCode.GET_MAX_OFFSET, {"topic": "S", "queueId": 0})
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.sim.workload.static_topic_requests import Segments, mapping_body, update_request
from tandemq.boundary import Opened
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_RESPONSE, Command
from tandemq.model.queue_mapping import LOGICAL_BROKER_PREFIX, QueueSegment
from tests.request_fields import pull_fields
from tests.unit.broker.harness import CLIENT, SUBSCRIPTION, Harness, messages_in, send_fields

NAME_SERVER = "10.0.9.9:9876"
PEER = 70
"""Connection on which a broker gets the requests of another one."""
EPOCH = 1_000


def mapping_of(
    topic: str, broker: str, hosted: Mapping[int, Segments], *, epoch: int = EPOCH, total: int = 2
) -> dict[str, Any]:
    """Return the body of UPDATE_AND_CREATE_STATIC_TOPIC for one broker."""
    return mapping_body(topic, broker, hosted, epoch=epoch, total_queues=total)


class WiredBrokers:
    """Some brokers by name; `routes` counts the routes that were asked for."""

    def __init__(self, path: Path, *names: str, **changes: Any) -> None:
        """Start them; `changes` of their settings."""
        self.brokers: dict[str, Harness] = {}
        self.silent: set[str] = set()
        """Brokers that answer no other one."""
        self.routes = 0
        self.registered: dict[str, list[bytes]] = {name: [] for name in names}
        self._targets: dict[tuple[str, int], str] = {}
        for number, name in enumerate(names):
            broker = Harness(
                path / name,
                address=address_of(number),
                broker_name=name,
                name_servers=(NAME_SERVER,),
                **changes,
            )
            broker.open(PEER)
            self.brokers[name] = broker
        self._addresses = {address_of(number): name for number, name in enumerate(names)}
        self.settle()

    def __getitem__(self, name: str) -> Harness:
        """Return a broker."""
        return self.brokers[name]

    # The network.

    def settle(self) -> None:
        """Carry requests between brokers, and to the name server, until there are none."""
        while sum(self._carry(name, broker) for name, broker in self.brokers.items()):
            pass

    def _carry(self, name: str, broker: Harness) -> bool:
        connects, broker.connects = broker.connects, []
        for connect in connects:
            self._targets[name, connect.link] = connect.address
            broker.turn([], [Opened(connect.link, connect.kind, connect.address)])
        carried = bool(connects)
        for link in [link for owner, link in self._targets if owner == name]:
            requests, broker.inbox[link] = broker.inbox[link], []
            for request in requests:
                carried = True
                answer = self._answer(name, self._targets[name, link], request)
                if answer is not None:
                    broker.turn([(link, encode_command(answer))])
        return carried

    def _answer(self, name: str, address: str, request: Command) -> Command | None:
        if address == NAME_SERVER:
            return self._name_server(name, request)
        target = self._addresses[address]
        if target in self.silent:
            return None
        found = self.ask(target, request.code, request.fields, request.body, link=PEER)
        return Command(found.code, request.opaque, FLAG_RESPONSE, found.remark, found.fields, found.body)

    def _name_server(self, name: str, request: Command) -> Command:
        if request.code == RequestCode.REGISTER_BROKER:
            self.registered[name].append(request.body)
            return request.answer(ResponseCode.SUCCESS)
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC, request.code
        self.routes += 1
        infos: dict[str, Any] = {}
        for other, broker in self.brokers.items():
            mapping = broker.node.topics.mappings.table.get(request.fields["topic"])
            infos |= {other: mapping.as_info()} if mapping is not None else {}
        groups = [
            {"brokerAddrs": {"0": address}, "brokerName": other, "cluster": "DefaultCluster"}
            for address, other in self._addresses.items()
        ]
        route = {"brokerDatas": groups, "queueDatas": [], "topicQueueMappingByBroker": infos}
        return request.answer(ResponseCode.SUCCESS, body=dumps(route))

    def pass_time(self, ms: int) -> None:
        """Advance the clocks of all brokers."""
        for broker in self.brokers.values():
            broker.pass_time(ms)
        self.settle()

    # Tools and clients.

    def ask(
        self, name: str, code: int, fields: Mapping[str, object], body: bytes = b"", *, link: int = CLIENT
    ) -> Command:
        """Send a broker a request and return its response, which may need those of others."""
        broker = self.brokers[name]
        opaque = broker.send_request(code, fields, body, link=link)
        self.settle()
        answer = broker.answer_to(opaque, link=link)
        assert answer is not None, f"no response to {code}"
        return answer

    def update(self, name: str, body: Mapping[str, Any], *, queues: int = 2, force: bool = False) -> Command:
        """Send a broker its part of a static topic, as a tool does."""
        request = update_request(body, queues, force=force)
        return self.ask(name, request.code, request.fields, request.body)

    def create(self, topic: str, queues: Mapping[int, Segments], *, epoch: int = EPOCH, total: int = 2) -> None:
        """Give each broker the logical queues of which it leads or led one segment."""
        for name in self.brokers:
            hosted = {
                number: segments
                for number, segments in queues.items()
                if any(one["bname"] == name for one in segments[-2:])
            }
            answer = self.update(name, mapping_of(topic, name, hosted, epoch=epoch, total=total))
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def send(self, name: str, topic: str, queue_id: int, body: bytes, **properties: str) -> Command:
        """Send a message to a logical queue."""
        return self.ask(name, RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)

    def pull(self, name: str, topic: str, queue_id: int, offset: int, *, flags: int = 0, commit: int = 0) -> Command:
        """Pull from a logical queue."""
        fields = pull_fields(
            topic,
            offset,
            queueId=queue_id,
            sysFlag=SUBSCRIPTION | flags,
            commitOffset=commit,
            suspendTimeoutMillis=15_000,
            bname=f"{LOGICAL_BROKER_PREFIX}global__",
        )
        return self.ask(name, RequestCode.PULL_MESSAGE, fields)

    def consume(self, name: str, topic: str, queue_id: int) -> dict[int, bytes]:
        """Read a logical queue from its start to its end, as a consumer does: bodies by logical offset."""
        found: dict[int, bytes] = {}
        offset = 0
        while True:
            answer = self.pull(name, topic, queue_id, offset)
            assert answer.code in (0, 19, 20, 21), f"{answer.code} {answer.remark}"
            if answer.code == ResponseCode.SUCCESS:
                delta = int(answer.fields["offsetDelta"])
                for message in messages_in(answer):
                    assert message.queue_offset + delta not in found
                    found[message.queue_offset + delta] = message.body
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            assert int(answer.fields["nextBeginOffset"]) != offset, "no progress"
            offset = int(answer.fields["nextBeginOffset"])

    def offset(self, name: str, code: int, topic: str, queue_id: int, **more: object) -> int:
        """Ask for an offset of a logical queue."""
        answer = self.ask(name, code, {"topic": topic, "queueId": queue_id, **more})
        assert answer.code == ResponseCode.SUCCESS, f"{answer.code} {answer.remark}"
        return int(answer.fields["offset"])


def address_of(number: int) -> str:
    """Return the address of the broker with a number."""
    return f"10.0.7.{number}:10911"


def gens(segments: tuple[QueueSegment, ...]) -> list[int]:
    """Return the generations of segments."""
    return [one.gen for one in segments]
