"""A name server driven by a test: one connection per caller, a clock that the test advances."""

import json
import zlib
from pathlib import Path
from struct import pack
from typing import Any

from tandemq.boundary import Closed, JobDone, LinkKind, Now, Opened, Outbox, Turn
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.account_files import AccountFiles
from tandemq.config.settings import NameServerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.nameserver import NameServer
from tandemq.real.disk import RealDisk

GOLDEN_FRAMES = Path(__file__).resolve().parents[2] / "golden" / "frames"


class FakeOutbox:
    """Number of unsent bytes of each connection, and the time that each look at the clock takes."""

    def __init__(self, look_us: int = 0) -> None:
        self.waiting = 0
        self.elapsed = 0
        self.look_us = look_us

    def backlog(self, _link: int) -> int:
        return self.waiting

    def elapsed_us(self) -> int:
        self.elapsed += self.look_us
        return self.elapsed


class Driver:
    """Sends requests to a name server over numbered connections, and checks that each response matches its request."""

    def __init__(
        self,
        path: Path,
        config: NameServerConfig | None = None,
        outbox: Outbox | None = None,
        keyring: Keyring | None = None,
        account_files: AccountFiles | None = None,
    ) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        self.node = NameServer(config or NameServerConfig(), RealDisk(path), outbox, keyring, account_files)
        self._opaque = 0

    def open(self, link: int) -> Turn:
        return self.node.turn([], [Opened(link, LinkKind.REMOTING, f"10.0.0.1:{link}")], self.now)

    def close(self, link: int) -> Turn:
        return self.node.turn([], [Closed(link, "the peer closed it")], self.now)

    def pass_time(self, ms: int) -> Turn:
        """Move the clock and drive the node whenever it asks for it; the last turn comes back."""
        end = self.now.mono_ms + ms
        turn = Turn()
        while (due := self.node.deadline_ms()) is not None and due <= end:
            self.now.mono_ms = due
            step = self.node.turn([], [], self.now)
            turn.closes += step.closes
            for job in step.jobs:
                self.node.turn([], [JobDone(job, job.run())], self.now)
        self.now.mono_ms = end
        return turn

    def raw(self, link: int, data: bytes) -> tuple[list[Command], Turn]:
        turn = self.node.turn([(link, data)], [], self.now)
        return answers_in(turn, link), turn

    def ask(self, link: int, command: Command) -> Command:
        self._opaque += 1
        command.opaque = self._opaque
        found, turn = self.raw(link, encode_command(command))
        assert not turn.closes, turn.closes
        assert len(found) == 1
        assert found[0].opaque == self._opaque
        assert found[0].is_response
        return found[0]

    def call(self, link: int, code: int, body: bytes = b"", /, **fields: str) -> Command:
        return self.ask(link, Command(code, fields=fields, body=body))

    def register(self, link: int, **changes: Any) -> Command:
        return self.ask(link, registration(**changes))

    def route(self, link: int, topic: str, version: int = 409) -> Any:
        """The route of a topic, decoded; None if there is none."""
        request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}, version=version)
        answer = self.ask(link, request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            assert topic in (answer.remark or "")
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body)


def answers_in(turn: Turn, link: int) -> list[Command]:
    decoder = FrameDecoder()
    frames = decoder.feed(b"".join(turn.sends.get(link, [])))
    assert decoder.error is None
    return [decode_command(frame) for frame in frames]


def topic(name: str, queues: int = 4, perm: int = 6, flag: int = 0) -> dict[str, Any]:
    return {
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": flag,
        "writeQueueNums": queues,
    }


def registration(
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    *,
    cluster: str = "DefaultCluster",
    ha: str = "10.0.0.1:10912",
    topics: tuple[dict[str, Any], ...] = (topic("TopicA"), topic("TBW102", 8, 7)),
    counter: int = 1,
    state_version: int = 0,
    version: int = 409,
    compress: bool = False,
    filter_servers: tuple[str, ...] = (),
    mappings: dict[str, Any] | None = None,
    **fields: str,
) -> Command:
    """Return a REGISTER_BROKER request as a Java broker sends it."""
    data_version = {"counter": counter, "stateVersion": state_version, "timestamp": 1_700_000_000_000}
    if compress:
        body = compressed_body(data_version, topics, filter_servers, mappings, version)
    else:
        wrapper = {"dataVersion": data_version, "topicConfigTable": {item["topicName"]: item for item in topics}}
        if mappings is not None:
            wrapper["topicQueueMappingInfoMap"] = mappings
        body = dumps({"filterServerList": list(filter_servers), "topicConfigSerializeWrapper": wrapper})
    header = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": ha,
        "brokerId": str(broker_id),
        "compressed": str(compress).lower(),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(RequestCode.REGISTER_BROKER, fields=header | fields, body=body, version=version)


def compressed_body(
    data_version: dict[str, int],
    topics: tuple[dict[str, Any], ...],
    filter_servers: tuple[str, ...] = (),
    mappings: dict[str, Any] | None = None,
    version: int = 409,
) -> bytes:
    parts = [block(dumps(data_version)), pack(">i", len(topics))]
    for item in topics:
        numbers = f"{item['readQueueNums']} {item['writeQueueNums']} {item['perm']}"
        parts.append(block(f"{item['topicName']} {numbers} {item['topicFilterType']} {{}}".encode()))
    parts.append(block(dumps(list(filter_servers))))
    if version >= 413:
        parts.append(pack(">i", len(mappings or {})))
        parts += [block(dumps(value)) for value in (mappings or {}).values()]
    return zlib.compress(b"".join(parts), 9)


def block(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def golden(name: str) -> bytes:
    return (GOLDEN_FRAMES / f"{name}.bin").read_bytes()
