"""Messages that push consumers work on: kept invisible while their client lives, and for that long only."""

import pytest

from lab.sim.world.network import SimConnection
from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.model.codes import RequestCode
from tandemq.proxy import renewals
from tandemq.proxy.clients import EXPIRE_MS
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.renewals import RENEW_BEFORE_MS, RENEW_EVERY_MS
from tests.spec import spec
from tests.unit.proxy.cluster import Client, ProxyCluster, Stream, ack_request, code, message, resource

BEAT_MS = 10_000


class Consuming:
    """A push consumer that has received some messages."""

    def __init__(self, *bodies: bytes, has_settings: bool = True, proxies: int = 1) -> None:
        self.cluster = ProxyCluster(proxies=proxies)
        self.cluster.topic("T")
        self.client: Client = self.cluster.client("consumer")
        self.stream: Stream | None = self.client.consume("G", "T") if has_settings else None
        for body in bodies:
            self.client.send(message("T", body))
        found = self.client.receive("G", "T", is_renewed=True)
        self.messages = found.messages
        assert len(self.messages) == len(bodies)
        self.other = self.cluster.client("other")

    def live(self, ms: int) -> None:
        """Let time pass while the consumer sends heartbeats."""
        for _ in range(ms // BEAT_MS):
            beat(self.client)
            self.cluster.run(BEAT_MS)

    def others_get(self, within_ms: int = 0) -> list[bytes]:
        """Return what another consumer of the group gets."""
        return self.other.receive("G", "T", poll_ms=within_ms).bodies

    @property
    def handles(self) -> int:
        """Number of handles that the proxy renews."""
        return self.cluster.proxy.node.renewed_handles


def beat(client: Client, group: str = "G") -> str:
    request = pb.HeartbeatRequest(group=resource(group), client_type=pb.ClientType.PUSH_CONSUMER)
    return code(client.call("Heartbeat", request, pb.HeartbeatResponse).status)


def terminate(client: Client) -> str:
    request = pb.NotifyClientTerminationRequest(group=resource("G"))
    return code(client.call("NotifyClientTermination", request, pb.NotifyClientTerminationResponse).status)


@spec("X02")
def test_a_message_stays_invisible_while_its_client_lives() -> None:
    consuming = Consuming(b"1", b"2")
    assert consuming.handles == 2
    consuming.live(300_000)
    assert not consuming.others_get()
    response = consuming.client.ack("G", "T", consuming.messages)
    assert {code(entry.status) for entry in response.entries} == {"OK"}, "the first handle has expired long ago"
    assert not consuming.handles
    consuming.live(400_000)
    assert not consuming.others_get()


def test_a_message_without_auto_renew_is_not_renewed() -> None:
    consuming = Consuming()
    consuming.client.send(message("T", b"1"))
    assert consuming.client.receive("G", "T", invisible_ms=20_000).bodies == [b"1"]
    assert not consuming.handles
    consuming.live(20_000)
    assert consuming.others_get(3_000) == [b"1"]


def test_messages_of_a_client_that_ends_come_to_others_after_a_second() -> None:
    consuming = Consuming(b"1", b"2")
    consuming.live(100_000)
    assert terminate(consuming.client) == "OK"
    assert terminate(consuming.client) == "UNRECOGNIZED_CLIENT_TYPE"
    taken = consuming.others_get(3_000) + consuming.others_get(3_000)
    assert sorted(taken) == [b"1", b"2"] and not consuming.handles


def test_messages_of_a_client_that_vanishes_come_to_others_after_its_time() -> None:
    consuming = Consuming(b"1")
    consuming.client.lose()
    consuming.cluster.run(EXPIRE_MS - 2_000)
    assert consuming.handles == 1 and not consuming.others_get()
    assert consuming.others_get(12_000) == [b"1"]


def test_messages_of_a_client_whose_stream_ended_and_that_sends_heartbeats_are_kept() -> None:
    consuming = Consuming(b"1")
    assert consuming.stream is not None
    consuming.stream.end()
    consuming.live(200_000)
    assert not consuming.others_get()
    consuming.cluster.run(EXPIRE_MS)
    assert consuming.others_get(10_000) == [b"1"]


def test_a_silent_client_with_a_stream_is_gone_after_two_minutes() -> None:
    consuming = Consuming(b"1")
    consuming.cluster.run(115_000)
    assert not consuming.others_get()
    assert consuming.others_get(12_000) == [b"1"]
    consuming.cluster.run(100)
    assert consuming.stream is not None and consuming.stream.call.status == 0


def test_messages_of_a_client_without_settings_are_kept_while_it_lives() -> None:
    """After a restart of the proxy clients receive before they send their settings again."""
    consuming = Consuming(b"1", has_settings=False)
    for _ in range(12):
        assert beat(consuming.client) == "UNRECOGNIZED_CLIENT_TYPE"
        consuming.cluster.run(BEAT_MS)
    assert not consuming.others_get()
    consuming.cluster.run(EXPIRE_MS)
    assert consuming.others_get(10_000) == [b"1"] and not consuming.handles


def test_a_client_beyond_the_maximum_is_served_without_renewal() -> None:
    cluster = ProxyCluster(proxy={"clients_max": 1})
    cluster.topic("T")
    first, second = cluster.client("c-1"), cluster.client("c-2")
    first.produce("T")
    first.send(message("T", b"1"))
    assert second.receive("G", "T", is_renewed=True).bodies == [b"1"]
    assert not cluster.proxy.node.renewed_handles
    assert second.receive("G", "T", poll_ms=20_000).code == "MESSAGE_NOT_FOUND"


def test_a_message_comes_back_after_three_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals, "KEPT_MS_MAX", 200_000)
    consuming = Consuming(b"1")
    consuming.live(190_000)
    assert consuming.handles == 1
    consuming.live(300_000)
    assert not consuming.handles and consuming.others_get() == [b"1"]


def test_a_client_has_a_maximum_of_renewed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals, "HANDLES_MAX", 2)
    consuming = Consuming(b"1", b"2", b"3")
    assert consuming.handles == 2
    consuming.live(70_000)
    assert len(consuming.others_get()) == 1


def test_a_message_that_cannot_be_renewed_is_forgotten() -> None:
    consuming = Consuming(b"1")
    consuming.cluster.broker.kill()
    consuming.live(80_000)
    assert not consuming.handles
    consuming.cluster.broker.start()
    consuming.cluster.run(3_000)
    assert consuming.others_get(5_000) == [b"1"]


def test_renewal_goes_on_after_a_restart_of_the_master() -> None:
    consuming = Consuming(b"1")
    consuming.live(40_000)
    consuming.cluster.broker.restart_after(8_000)
    consuming.live(200_000)
    assert not consuming.others_get()
    consuming.client.ack("G", "T", consuming.messages)
    consuming.live(300_000)
    assert not consuming.others_get()


def test_messages_of_a_client_that_ends_during_a_failover_come_back_afterwards() -> None:
    consuming = Consuming(b"1")
    consuming.live(300_000)
    consuming.cluster.broker.restart_after(6_000)
    consuming.cluster.run(10)
    assert terminate(consuming.client) == "OK"
    consuming.cluster.run(12_000)
    assert consuming.others_get(5_000) == [b"1"]


# Requests of the client while a renewal is in flight.


class Requests:
    """What the proxy asks the broker."""

    def __init__(self, cluster: ProxyCluster) -> None:
        self._cluster = cluster
        self.codes: list[int] = []
        self._decoders: dict[SimConnection, FrameDecoder] = {}
        cluster.network.tap = self._tap

    def _tap(self, connection: SimConnection, end: int, data: bytes) -> None:
        if not end and connection.owners[0] is self._cluster.proxy.process and connection.kind is LinkKind.REMOTING:
            decoder = self._decoders.setdefault(connection, FrameDecoder())
            self.codes += [decode_command(frame).code for frame in decoder.feed(data)]

    def until(self, asked: RequestCode) -> None:
        """Wait until the proxy sends a request of a code, and have the broker serve it 0.3 s later."""
        self.codes.clear()
        while asked not in self.codes:
            self._cluster.world.run_until(self._cluster.world.now_us + 200)
        assert self._cluster.broker.process is not None
        self._cluster.broker.process.pause(300_000)


def test_what_is_acknowledged_during_a_renewal_does_not_come_back() -> None:
    consuming = Consuming(b"1")
    requests = Requests(consuming.cluster)
    beat(consuming.client)
    requests.until(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    response = consuming.client.ack("G", "T", consuming.messages)
    assert code(response.status) == "OK"
    assert consuming.handles == 0
    consuming.live(200_000)
    assert not consuming.others_get()


def test_what_is_being_acknowledged_is_not_renewed() -> None:
    consuming = Consuming(b"1")
    requests = Requests(consuming.cluster)
    beat(consuming.client)
    requests.until(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    renewed_us = consuming.cluster.world.now_us
    consuming.live(40_000)
    next_us = renewed_us + 60_000_000 - RENEW_BEFORE_MS * 1_000 + RENEW_EVERY_MS * 1_000
    consuming.cluster.world.run_until(next_us - 100_000)
    call = consuming.client.start("AckMessage", ack_request("G", "T", consuming.messages))
    requests.until(RequestCode.ACK_MESSAGE)
    consuming.cluster.run(250)
    assert call.status is None, "the time of the next renewal has passed meanwhile"
    consuming.cluster.until(lambda: call.status == 0)
    assert RequestCode.CHANGE_MESSAGE_INVISIBLETIME not in requests.codes
    consuming.live(300_000)
    assert not consuming.others_get()


def test_a_message_changed_by_its_client_during_a_renewal_comes_back_once() -> None:
    consuming = Consuming(b"1")
    requests = Requests(consuming.cluster)
    beat(consuming.client)
    requests.until(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert code(consuming.client.change("G", "T", consuming.messages[0], 10_000).status) == "OK"
    assert consuming.handles == 0
    again = consuming.other.receive("G", "T", poll_ms=15_000)
    assert again.bodies == [b"1"]
    consuming.other.ack("G", "T", again.messages)
    consuming.live(200_000)
    assert not consuming.others_get()


def test_a_message_whose_client_ends_during_a_renewal_comes_back_once() -> None:
    consuming = Consuming(b"1")
    requests = Requests(consuming.cluster)
    beat(consuming.client)
    requests.until(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert terminate(consuming.client) == "OK"
    again = consuming.other.receive("G", "T", poll_ms=5_000)
    assert again.bodies == [b"1"]
    consuming.other.ack("G", "T", again.messages)
    consuming.cluster.run(200_000)
    assert not consuming.others_get()


def test_a_message_that_is_acknowledged_while_its_client_ends_does_not_come_back() -> None:
    consuming = Consuming(b"1")
    requests = Requests(consuming.cluster)
    call = consuming.client.start("AckMessage", ack_request("G", "T", consuming.messages))
    requests.until(RequestCode.ACK_MESSAGE)
    assert terminate(consuming.client) == "OK" and call.status is None
    consuming.cluster.until(lambda: call.status == 0)
    consuming.cluster.run(100_000)
    assert not consuming.others_get()


def test_a_message_whose_acknowledgement_fails_while_its_client_ends_comes_back() -> None:
    consuming = Consuming(b"1")
    consuming.cluster.broker.restart_after(7_000)
    call = consuming.client.start("AckMessage", ack_request("G", "T", consuming.messages))
    consuming.cluster.run(100)
    assert terminate(consuming.client) == "OK"
    consuming.cluster.until(lambda: call.status is not None)
    consuming.cluster.run(10_000)
    assert consuming.others_get(5_000) == [b"1"]
