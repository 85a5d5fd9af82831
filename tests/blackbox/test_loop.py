"""The server loop with real sockets: nothing slow runs on it, and one link's trouble is its own."""

import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.samples import tiny
from tandemq.boundary import Closed, Connect, Event, Job, JobDone, LinkKind, Now, Turn
from tandemq.broker.node import Broker
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.frame import encode_command
from tandemq.config import files
from tandemq.config.settings import NameServerConfig
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.real.disk import RealFile
from tandemq.real.file_syncs import FileSyncs
from tandemq.real.loop import Loop
from tandemq.run import broker as run_broker
from tandemq.run.broker import BrokerProcess
from tandemq.run.nameserver import NameServerProcess
from tests.blackbox.in_process import running
from tests.blackbox.programs import Caller, wait_until
from tests.request_fields import pull_fields
from tests.spec import spec


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = replace(tiny(), store_path=str(tmp_path / "store"), flush_type="SYNC_FLUSH")
    with running(BrokerProcess(config)) as process:
        yield process


@spec("V11", "W11")
@pytest.mark.parametrize("who", ["the system", "a thread"])
def test_hanging_fsync_delays_who_waits_for_it_and_nobody_else(
    who: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    began = threading.Event()
    sync, begin, take_done = RealFile.datasync, FileSyncs.begin, FileSyncs.take_done

    def hang(self: RealFile) -> None:
        began.set()
        assert may_end.wait(120)
        sync(self)

    def hanging_begin(self: FileSyncs, job: Job) -> bool:
        found = begin(self, job)
        if found:
            began.set()
        return found

    def hanging_take_done(self: FileSyncs) -> list[JobDone]:
        return take_done(self) if may_end.is_set() else []

    with Caller(broker.port) as sender, Caller(broker.port) as other:
        assert sender.send(b"before") == ResponseCode.SUCCESS
        if who == "a thread":
            monkeypatch.setattr(FileSyncs, "begin", lambda *_: False)
            monkeypatch.setattr(RealFile, "datasync", hang)
        else:
            monkeypatch.setattr(FileSyncs, "begin", hanging_begin)
            monkeypatch.setattr(FileSyncs, "take_done", hanging_take_done)
        opaque = sender.begin_send(b"waits")
        assert began.wait(120)
        for _ in range(200):
            asked = other.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0})
            assert asked.code == ResponseCode.SUCCESS
        assert other.read_all()[-1] == b"waits"
        may_end.set()
        answer = sender.receive()
        assert (answer.opaque, answer.code) == (opaque, ResponseCode.SUCCESS)


def test_client_that_asks_and_never_reads_costs_bounded_memory_and_nobody_else(broker: BrokerProcess) -> None:
    with Caller(broker.port) as other:
        for number in range(20):
            assert other.send(bytes([number]) * 8_000) == ResponseCode.SUCCESS
        greedy = socket.create_connection(("127.0.0.1", broker.port), 120)
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        fields = {name: str(value) for name, value in pull_fields().items()}
        request = encode_command(Command(RequestCode.PULL_MESSAGE, 1, fields=fields))
        greedy.setblocking(False)
        sent, stuck = 0, 0
        while stuck < 50 and sent < 8 << 20:
            try:
                sent += greedy.send(request * 50)
                stuck = 0
            except BlockingIOError:
                stuck += 1
                assert other.send(b"still served") == ResponseCode.SUCCESS
            except ConnectionError:
                break
        greedy.close()
        assert other.send(b"after") == ResponseCode.SUCCESS


def test_loop_goes_on_when_a_peer_resets_in_the_middle(broker: BrokerProcess) -> None:
    with Caller(broker.port) as other:
        for _ in range(50):
            sock = socket.create_connection(("127.0.0.1", broker.port), 120)
            sock.sendall(b"\0\0\1\0")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        assert other.send(b"x") == ResponseCode.SUCCESS
        wait_until(lambda: len(broker.node.links) == 1, "the links are gone")


@spec("V11")
def test_name_service_that_hangs_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_end = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def look_up(host: str) -> str:
        assert host == "names.example"
        asked.set()
        assert may_end.wait(120)
        return "127.0.0.1"

    monkeypatch.setattr("tandemq.real.network.resolver.look_up", look_up)
    address = f"names.example:{listener.getsockname()[1]}"
    config = replace(
        tiny(),
        store_path=str(tmp_path / "store"),
        name_servers=(address,),
        advertised_ip="127.0.0.1",
    )
    with listener, running(BrokerProcess(config)) as process:
        try:
            assert asked.wait(120)
            with Caller(process.port) as caller:
                assert caller.send(b"served meanwhile") == ResponseCode.SUCCESS
            may_end.set()
            listener.settimeout(30)
            connection, _ = listener.accept()
            assert connection.recv(4)
            connection.close()
        finally:
            may_end.set()


def test_name_nobody_knows_is_a_connection_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(_host: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("tandemq.real.network.resolver.look_up", look_up)
    loop = Loop()
    found: list[Event] = []

    class Asker:
        def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
            found.extend(events)
            if found:
                loop.stop()
            turn = Turn()
            if not self.has_asked:
                self.has_asked = True
                turn.connects.append(Connect(-1, LinkKind.PEER, "names.example:9876"))
            return turn

        has_asked = False

        def deadline_ms(self) -> int | None:
            return None if self.has_asked else 0

    loop.run(Asker())
    loop.close()
    assert found == [Closed(-1, "cannot connect to names.example:9876: [Errno -2] Name or service not known")]


def test_fewer_connections_hold_from_the_next_one_on(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.LIVE_RANGES, "maxConnections", (1, 10))
    with Caller(broker.port) as caller:
        assert caller.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxConnections=1").code == ResponseCode.SUCCESS
        with socket.create_connection(("127.0.0.1", broker.port), 120) as refused:
            assert refused.recv(1) == b""
        with Caller(broker.fast_port) as other:
            assert other.send(b"on a reserved place") == ResponseCode.SUCCESS
        with socket.create_connection(("127.0.0.1", broker.ha_port), 120) as replica:
            replica.settimeout(0.5)
            with pytest.raises(TimeoutError):
                replica.recv(1)  # kept, and waits for the slave to introduce itself
        assert caller.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxConnections=2").code == ResponseCode.SUCCESS
        with Caller(broker.port) as other:
            assert other.send(b"taken again") == ResponseCode.SUCCESS


def test_no_connection_is_accepted_before_the_store_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    process = BrokerProcess(replace(tiny(), store_path=str(tmp_path / "store")))
    made = Broker

    def opening(*arguments: object, **named: object) -> object:
        for port in (process.port, process.fast_port, process.ha_port):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 120)
            tried.append("refused")
        return made(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(run_broker, "Broker", opening)
    process.open()
    try:
        assert tried == ["refused"] * 3
        socket.create_connection(("127.0.0.1", process.port), 120).close()
    finally:
        process.close()


CLIENT = dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []})


def test_broker_that_stops_tells_its_clients_and_refuses_new_connections(tmp_path: Path) -> None:
    process = BrokerProcess(replace(tiny(), store_path=str(tmp_path / "store")))
    process.open()
    thread = threading.Thread(target=process.run)
    thread.start()
    with Caller(process.port) as consumer, Caller(process.port) as producer:
        assert producer.send(b"x") == ResponseCode.SUCCESS
        for caller in (consumer, producer):
            assert caller.ask(RequestCode.HEART_BEAT, body=CLIENT).code == ResponseCode.SUCCESS
        held = consumer.begin_request(
            RequestCode.PULL_MESSAGE, pull_fields("TopicA", 1, sysFlag=6, suspendTimeoutMillis=15_000)
        )
        wait_until(lambda: process.node.pull.held.size == 1, "the pull is held")
        process.stop()
        thread.join()
        late = producer.begin_send(b"late")
        port = process.port
        process.close()
        for caller, opaque in ((consumer, held), (producer, late)):
            answer = caller.receive()
            assert (answer.opaque, answer.code) == (opaque, ResponseCode.GO_AWAY)
            assert caller.read_end() == b""
    with pytest.raises(NotConnected, match="refused"):
        Caller(port)


def test_name_server_that_stops_tells_its_clients(tmp_path: Path) -> None:
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, data_path=str(tmp_path / "names"))
    process = NameServerProcess(config)
    process.open()
    thread = threading.Thread(target=process.run)
    thread.start()
    with Caller(process.port) as client:
        route = {"topic": "TopicA"}
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route).code == ResponseCode.TOPIC_NOT_EXIST
        process.stop()
        thread.join()
        client.begin_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        process.close()
        assert client.receive().code == ResponseCode.GO_AWAY
        assert client.read_end() == b""
