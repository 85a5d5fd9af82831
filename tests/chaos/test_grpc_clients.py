"""The gRPC clients of `make chaos`: what they record of good and bad responses, and which proxy they ask."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from google.protobuf.message import Message as Protobuf

from chaos.grpc_clients import INVISIBLE_S, SOON_S, GrpcClients, GrpcReceiver, GrpcSender, message_group
from chaos.grpc_connection import ProxyClient
from chaos.history import History, Place, Stored
from chaos.pops import PopHistory
from chaos.recorder import Recorder
from judge.verdict import judge
from tandemq.errors import LocalError, NetworkError, NotConnected
from tandemq.model.pop import Handle, TopicKind
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.sending import queue_index

R = TypeVar("R", bound=Protobuf)
TOPIC, BROKER, QUEUES = "Chaos", "broker-a", 4
OK = pb.Status(code=pb.Code.OK)
LATE = pb.Status(code=pb.Code.INVALID_RECEIPT_HANDLE)
BUSY = pb.Status(code=pb.Code.PROXY_TIMEOUT)


class Script:
    """Calls whose responses are made by hand; None: there is no response."""

    def __init__(self, answer: Callable[[str, Protobuf], Protobuf | list[Protobuf] | None]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Protobuf]] = []

    def stream(self, method: str, request: Protobuf, timeout_s: float) -> list[bytes]:
        assert timeout_s > 0
        self.asked.append((method, request))
        found = self._answer(method, request)
        if found is None:
            raise NetworkError("lost")
        return [one.SerializeToString() for one in (found if isinstance(found, list) else [found])]

    def call(self, method: str, request: Protobuf, response: type[R], timeout_s: float) -> R:
        (data,) = self.stream(method, request, timeout_s)
        return response.FromString(data)


def sent(offset: int, recall_handle: str = "") -> pb.SendMessageResponse:
    return pb.SendMessageResponse(
        status=OK, entries=[pb.SendResultEntry(status=OK, offset=offset, recall_handle=recall_handle)]
    )


def sender(answers: list[pb.SendMessageResponse | None]) -> tuple[GrpcSender, History, Script]:
    """A producer whose sends get these answers one after the other, its recalls none."""
    left = list(answers)
    script = Script(lambda method, _request: left.pop(0) if method == "SendMessage" else None)
    history = History()
    return GrpcSender(script, TOPIC, QUEUES, history), history, script


def test_confirmed_message_is_due_and_checked_in_the_log_at_its_offset() -> None:
    one, history, _ = sender([sent(7)])
    assert one.send_next()
    assert history.due == {"g-1"}
    assert history.unplaced == {"g-1": 7}
    history.check_clients()
    assert [text[:4] for text in history.violations] == ["I1: "], "it was never delivered"
    history.violations.clear()
    history.check_log("a-0", [Stored(Place(2, 7), "g-1", "g", "g-1", "key")])
    assert history.violations == []
    history.check_log("a-1", [Stored(Place(2, 6), "g-1", "g", "g-1", "key")])
    (violation,) = history.violations
    assert violation.startswith(
        "I1: 1 acknowledged and in no queue of the log of a-1 at their offset, first [('g-1', 7"
    )


def test_message_of_a_group_has_the_place_that_its_group_says() -> None:
    one, history, script = sender([sent(0), sent(1), sent(5)])
    for _ in range(3):
        one.send_next()
    group = message_group(3)
    assert history.acknowledged == {"g-3": Place(queue_index(group, QUEUES), 5)}
    request = script.asked[2][1]
    assert isinstance(request, pb.SendMessageRequest)
    assert request.messages[0].system_properties.message_group == group


def test_message_is_sent_again_with_its_id_and_a_lost_response_is_no_confirmation() -> None:
    one, history, script = sender([None, pb.SendMessageResponse(status=BUSY), sent(9), None, None, None])
    assert one.send_next()
    assert not one.send_next()
    ids = [request.messages[0].system_properties.message_id for _, request in script.asked]  # type: ignore[attr-defined]
    assert (len(set(ids[:3])), len(set(ids[3:])), len(set(ids))) == (1, 1, 2)
    assert history.due == {"g-1"}
    assert history.failed == 5
    assert (one.sent, one.failed) == (1, 1)


def test_message_that_too_few_brokers_have_is_stored_and_not_confirmed() -> None:
    unsafe = pb.SendMessageResponse(status=pb.Status(code=pb.Code.HA_NOT_AVAILABLE))
    one, history, _ = sender([unsafe, None, None])
    assert not one.send_next()
    assert (one.sent, one.failed, history.due) == (0, 0, set())


def test_timed_message_waits_at_its_place_and_one_whose_recall_is_lost_may_be_delivered_or_not() -> None:
    one, history, script = sender([sent(number, "handle" if number in (22, 45) else "") for number in range(46)])
    for _ in range(46):
        one.send_next()
    assert history.timed == {"g-23": Place(0, 22), "g-46": Place(0, 45)}
    assert [method for method, _ in script.asked].count("RecallMessage") == 1
    assert history.recalled == {"g-46"}
    assert "g-23" in history.due and "g-46" not in history.due


def handle_of(offset: int, attempt: int) -> str:
    """Return the handle of a message that was popped in the last millisecond."""
    kind = TopicKind.NORMAL if attempt == 1 else TopicKind.RETRY_V1
    return str(Handle(offset, int(time.time() * 1_000), INVISIBLE_S * 1_000, 0, kind, BROKER, 1, offset))


def message(body: str, offset: int = 0, attempt: int = 1) -> pb.ReceiveMessageResponse:
    system = pb.SystemProperties(
        message_id=body,
        receipt_handle=handle_of(offset, attempt),
        queue_id=1,
        queue_offset=offset,
        delivery_attempt=attempt,
    )
    return pb.ReceiveMessageResponse(message=pb.Message(body=body.encode(), system_properties=system))


class Proxy:
    """Answers of a proxy to a consumer."""

    def __init__(self, *received: pb.ReceiveMessageResponse, recorder: Recorder | None = None) -> None:
        self.received: list[Protobuf] = [pb.ReceiveMessageResponse(status=OK), *received]
        self.acks: dict[str, pb.Status] | None = {}
        """Status by message id, OK otherwise; None: no response."""
        self.change: pb.Status | None = OK
        self.history = PopHistory(elects=True, recorder=recorder)
        self.script = Script(self._answer)
        self.receiver = GrpcReceiver(self.script, TOPIC, BROKER, self.history)

    def _answer(self, method: str, request: Protobuf) -> Protobuf | list[Protobuf] | None:
        if method == "ReceiveMessage":
            return self.received
        if isinstance(request, pb.ChangeInvisibleDurationRequest):
            changed = pb.ChangeInvisibleDurationResponse(status=self.change, receipt_handle="later")
            return changed if self.change is not None else None
        assert isinstance(request, pb.AckMessageRequest)
        if self.acks is None:
            return None
        entries = [
            pb.AckMessageResultEntry(receipt_handle=entry.receipt_handle, status=self.acks.get(entry.message_id, OK))
            for entry in request.entries
        ]
        return pb.AckMessageResponse(status=OK, entries=entries)

    def acknowledged_handles(self) -> list[str]:
        return [
            entry.receipt_handle
            for _, request in self.script.asked
            if isinstance(request, pb.AckMessageRequest)
            for entry in request.entries
        ]


def test_acknowledged_message_must_not_be_received_again_from_its_queue() -> None:
    proxy = Proxy(message("a-1", 5))
    assert proxy.receiver.receive()
    assert proxy.history.check(["a-1"]) == []
    proxy.receiver.receive()
    assert [text[:4] for text in proxy.history.check(["a-1"])] == ["I25:"]


def test_message_from_the_retry_topic_has_no_place_in_the_queue() -> None:
    proxy = Proxy(message("a-1", 5, attempt=2), message("a-2", 5))
    proxy.receiver.receive()
    assert proxy.history.check(["a-1", "a-2"]) == []
    assert proxy.history.came_back == 1


def test_late_acknowledgement_does_not_count() -> None:
    proxy = Proxy(message("a-1", 1), message("a-2", 2))
    proxy.acks = {"a-1": LATE}
    proxy.receiver.receive()
    (violation,) = proxy.history.check(["a-1", "a-2"])
    assert violation.startswith("I25: 1 never popped and acknowledged by chaos-pop, first ['a-1']")
    assert proxy.receiver.late == 1


def test_acknowledgement_with_unknown_outcome_counts_neither_way() -> None:
    proxy = Proxy(message("a-1", 1), message("a-2", 2))
    proxy.acks = {"a-1": BUSY}
    proxy.receiver.receive()
    proxy.acks = None
    proxy.received[1:] = [message("a-3", 3)]
    proxy.receiver.receive()
    assert proxy.history.bodies == {"a-2"}
    assert proxy.history.missing(["a-1", "a-2", "a-3"]) == set()
    assert proxy.receiver.unknown == {"PROXY_TIMEOUT": 1}


def test_message_that_is_returned_must_come_back() -> None:
    proxy = Proxy(message("a-41", 1))
    proxy.receiver.receive()
    assert proxy.acknowledged_handles() == []
    assert proxy.history.missing(["a-41"]) == {"a-41"}
    proxy.received[1:] = [message("a-41", 0, attempt=2)]
    proxy.receiver.receive()
    assert proxy.history.check(["a-41"]) == []


@pytest.mark.parametrize(("change", "handles"), [(OK, ["later"]), (LATE, []), (None, [])])
def test_extended_message_is_acknowledged_by_its_new_handle_or_not_at_all(
    change: pb.Status | None, handles: list[str]
) -> None:
    proxy = Proxy(message("a-13", 1))
    proxy.change = change
    proxy.receiver.receive()
    assert proxy.acknowledged_handles() == handles
    assert proxy.receiver.extended == len(handles)


def test_lost_receive_changes_nothing() -> None:
    receiver = GrpcReceiver(Script(lambda _method, _request: None), TOPIC, BROKER, PopHistory(elects=True))
    assert not receiver.receive()


def address_of(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


@pytest.fixture
def closing_server() -> Iterator[tuple[str, list[bytes]]]:
    """A server that closes each connection after its first bytes."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(1 << 16))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield address_of(server), seen
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_client_asks_the_next_proxy_after_a_lost_call(closing_server: tuple[str, list[bytes]]) -> None:
    address, seen = closing_server
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = address_of(closed)
    client = ProxyClient([nobody, address], "client", pb.Settings())
    with pytest.raises(NotConnected):
        client.stream("QueryRoute", pb.QueryRouteRequest(), 5)
    with pytest.raises(NetworkError, match=address):
        client.stream("QueryRoute", pb.QueryRouteRequest(), 5)
    with pytest.raises(NotConnected):
        client.stream("QueryRoute", pb.QueryRouteRequest(), 5)
    assert client.lost == 3
    assert len(seen) == 1 and seen[0].startswith(b"PRI * HTTP/2.0")


def test_silent_proxy_is_given_up_after_the_time_of_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = address_of(silent)
        client = ProxyClient([address], "client", pb.Settings())
        with pytest.raises(NetworkError, match=r"does not answer within 0\.1 s"):
            client.stream("QueryRoute", pb.QueryRouteRequest(), 0.1)


def test_proxies_that_take_no_message_are_violations(closing_server: tuple[str, list[bytes]]) -> None:
    address, _ = closing_server
    clients = GrpcClients({"proxy-0": address}, TOPIC, QUEUES, BROKER, History(), PopHistory(elects=True))
    assert clients.send_last(0.0) == ["I14: proxy-0 takes no message within 0 s after the faults"]
    with pytest.raises(LocalError, match="have not received from each queue"):
        clients.begin(0.0)


@pytest.mark.parametrize(
    ("body", "acks", "change", "found"),
    [
        ("a-1", None, OK, {"pop-overlap": 1}),
        ("a-1", {}, OK, {"pop-again": 1}),
        ("a-41", {}, None, {}),
        ("a-13", None, OK, {"pop-overlap": 1}),
        ("a-13", None, LATE, {"pop-overlap": 1}),
    ],
    ids=["held", "acknowledged", "made visible", "held for longer", "refused to be held for longer"],
)
def test_judge_knows_what_the_consumer_holds(
    body: str, acks: dict[str, pb.Status] | None, change: pb.Status | None, found: dict[str, int]
) -> None:
    file = io.StringIO()
    recorder = Recorder(file, TOPIC, BROKER, run="seed 1", system="TandemQ", promises={})
    History(recorder=recorder, group="chaos").sending(body, "a")
    proxy = Proxy(message(body, 5), recorder=recorder)
    proxy.acks, proxy.change = acks, change
    proxy.receiver.receive()
    until = time.monotonic() + (SOON_S if body == "a-41" else 0.002)
    while time.monotonic() < until:  # handles have whole milliseconds
        pass
    proxy.received[1:] = [message(body, 5)]
    proxy.receiver.receive()
    assert judge(file.getvalue().splitlines(keepends=True)).counts == found
