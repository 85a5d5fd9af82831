"""Access control at all ports: a walk over what each of them answers; what is new and checks nobody fails it.

port           what is walked                          who passes
broker         requests of all features                users with rights; for some the secret of members
name server    handlers of all codes                   users, super users, sessions with the secret
proxy          methods of all gRPC services            users with rights
Kafka          requests of Kafka consumers             users of the cluster
replication    first frames of a slave                 those that prove the secret
metrics        paths                                   those with a token
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf

from tandemq.boundary import LinkKind
from tandemq.broker.features.access.needs import OPEN
from tandemq.codec.ha import (
    TLS_BEGIN,
    Opening,
    SlaveHello,
    SlaveProof,
    checked,
    encode_hello,
    encode_step,
)
from tandemq.codec.proofs import NONCE_BYTES, Keyring
from tandemq.codec.remoting.signature import signed
from tandemq.errors import ProtocolError
from tandemq.kafka.accounts import KafkaAccounts
from tandemq.kafka.cluster import ClusterReader
from tandemq.kafka.front import KafkaFront
from tandemq.kafka.partitions import PartitionNumbers
from tandemq.kafka.requests import SASL_VERSIONS, VERSIONS, Api
from tandemq.kafka.wire import WireWriter
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.nameserver.access import NameServerRight
from tandemq.nameserver.registry_service import CODES as REGISTRY_CODES
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.service import NAME
from tandemq.real.monitoring.listener import _PATHS
from tandemq.replication.authentication import MasterProver
from tandemq.replication.master import FRAME_BYTES, MasterSession, MasterSettings, SlaveHelloReceived
from tests.unit.broker.features.access.test_access import Guarded as GuardedBroker
from tests.unit.nameserver.test_access import ADMIN, SHOP
from tests.unit.nameserver.test_access import Guarded as GuardedNameServer
from tests.unit.proxy.cluster import Client, code
from tests.unit.proxy.test_access import Guarded as GuardedProxy
from tests.unit.real.monitoring.test_listener import Server
from tests.unit.replication.logs import FakeLog

REFUSED = ResponseCode.NO_PERMISSION
NOBODY = (None, Credentials("", ""), Credentials("nobody", "x"), Credentials("root", "wrong"))
SECRET = b"s" * 32


def keyring() -> Keyring:
    return Keyring(lambda: (SECRET,), Random(1))


# The broker.


@pytest.mark.parametrize("port", [LinkKind.REMOTING, LinkKind.FAST])
@pytest.mark.parametrize("user", NOBODY)
def test_broker(tmp_path: Path, port: LinkKind, user: Credentials | None) -> None:
    broker = GuardedBroker(tmp_path)
    broker.open(7, port)
    fields = {"topic": "T", "b": "T", "queueId": "0", "consumerGroup": "g"}
    own = fields if user is None else signed(fields, b"", user)
    walked = set(broker.node.features.requests) - OPEN
    answers = {number: broker.ask(number, own, link=7) for number in walked}
    assert {number for number, answer in answers.items() if answer.remark != NOT_AUTHENTICATED} == set()
    assert {answer.code for answer in answers.values()} == {REFUSED}


def test_requests_of_members_need_their_secret_at_the_broker(tmp_path: Path) -> None:
    """They need no user then: each is refused without a proof, even to a super user."""
    broker = GuardedBroker(tmp_path, keyring=keyring())
    of_members = [number for number, request in broker.node.features.requests.items() if request.is_of_member]
    assert of_members
    for user in (None, Credentials("root", "root-key")):
        for number in of_members:
            answer = broker.as_user(user, number)
            assert answer.code == REFUSED and "without a proof" in str(answer.remark), Code(number)


# The name server.


@pytest.fixture
def name_server(tmp_path: Path) -> GuardedNameServer:
    return GuardedNameServer(tmp_path, registry_enable=True)


FIELDS = {
    "topic": "T",
    "namespace": "n",
    "key": "k",
    "value": "v",
    "cluster": "C",
    "clusterName": "C",
    "brokerName": "b",
    "brokerAddr": "10.0.0.1:1",
}


@pytest.mark.parametrize("user", NOBODY)
def test_name_server(name_server: GuardedNameServer, user: Credentials | None) -> None:
    rights = {number: handler.right for number, handler in name_server.node.processor.handlers.items()}
    assert set(rights.values()) == set(NameServerRight)
    assert {number for number, right in rights.items() if right is NameServerRight.PROOF} == REGISTRY_CODES
    for number in rights.keys() - {Code.TANDEM_REGISTRY_CHALLENGE}:
        answer = name_server.as_user(user, number, FIELDS)
        assert answer.code == REFUSED, Code(number)
        why = "haSecretFile" if number in REGISTRY_CODES else NOT_AUTHENTICATED
        assert why in str(answer.remark), Code(number)


def test_changes_at_the_name_server_need_more_than_a_user(name_server: GuardedNameServer) -> None:
    changes = {
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.QUERY_DATA_VERSION,
        Code.BROKER_HEARTBEAT,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.PUT_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
    }
    for number in name_server.node.processor.handlers.keys() - REGISTRY_CODES:
        assert (name_server.as_user(SHOP, number, FIELDS).code == REFUSED) is (number in changes), Code(number)
        assert name_server.as_user(ADMIN, number, FIELDS).code != REFUSED, Code(number)


# The proxy.

PUBLIC = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}
"""Whether it serves, and the names of its methods."""


def filled(query: Protobuf) -> Protobuf:
    """Give a request the names of a topic and a group wherever it has them."""
    for field in query.DESCRIPTOR.fields:
        if field.message_type is None or field.name == "settings":
            continue
        value = getattr(query, field.name)
        if field.message_type is pb.Resource.DESCRIPTOR:
            for one in [value.add()] if field.is_repeated else [value]:
                one.name = "T"
        elif field.message_type in (pb.Message.DESCRIPTOR, pb.MessageQueue.DESCRIPTOR):
            filled(value.add() if field.is_repeated else value)
    return query


@pytest.mark.parametrize("user", NOBODY)
def test_proxy(user: Credentials | None) -> None:
    cluster = GuardedProxy()
    client = cluster.as_user(user)
    node = cluster.proxies[0].node
    assert node is not None
    served = {method.name: method for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods}
    assert {path for path in node.methods if not path.startswith(f"/{NAME}/")} == PUBLIC
    for path in node.methods.keys() - PUBLIC:
        method = served[path.rpartition("/")[2]]
        if method.name == "Telemetry":
            status = client.produce("T").commands[0].status
        else:
            data = answered(cluster, client, method.name, filled(getattr(pb, method.input_type.name)()))
            status = getattr(pb, method.output_type.name).FromString(data).status
        assert code(status) == "UNAUTHORIZED", path


def answered(cluster: GuardedProxy, client: Client, method: str, query: Protobuf) -> bytes:
    """Return the first response of a call."""
    call = client.start(method, query)
    cluster.until(lambda: call.status is not None)
    return call.messages[0]


# The port for Kafka consumers.


class NoCluster(ClusterReader):
    """What must not be asked."""

    def __init__(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("api", sorted((VERSIONS | SASL_VERSIONS).keys() - {Api.API_VERSIONS, Api.SASL_HANDSHAKE}))
def test_kafka(tmp_path: Path, api: Api) -> None:
    front = KafkaFront(NoCluster(), PartitionNumbers(tmp_path / "numbers"), ("k", 1), KafkaAccounts(NoCluster))
    request = WireWriter()
    request.int16(api)
    request.int16((VERSIONS | SASL_VERSIONS)[api][1])
    request.int32(1)
    request.string("consumer")
    with pytest.raises(ProtocolError, match="does not sign in" if api is not Api.SASL_AUTHENTICATE else "ends"):
        asyncio.run(front.answer(bytes(request.data), front.session()))


# The replication port.


def first_frames() -> Iterator[bytes]:
    """Yield what a slave that does not know the secret may begin with."""
    hello = SlaveHello(
        cluster="C", broker_name="b", broker_id=1, run_id=7, log_start=0, log_end=0, segment_bytes=1 << 20
    )
    opening = encode_step(Opening("C", "b", 1, b"n" * NONCE_BYTES))
    yield pack(">q", 0)  # the report of a classic slave
    yield encode_hello(hello)
    yield opening
    yield opening + encode_hello(hello)
    yield opening + opening
    yield opening + encode_step(SlaveProof(b"x" * 32))
    yield opening + encode_step(SlaveProof(b""))
    yield TLS_BEGIN + bytes(100)
    for kind, size in FRAME_BYTES.items():
        frame = checked(kind, bytes(size - len(checked(kind, b""))))
        yield frame
        yield opening + frame


@pytest.mark.parametrize("first", list(first_frames()))
def test_replication(first: bytes) -> None:
    log = FakeLog(b"BYTES-OF-THE-LOG" * 100)
    session = MasterSession(
        log,
        0,
        MasterSettings(100, 1_000, 1_000),
        is_classic_admitted=False,
        prover=MasterProver(keyring(), 0),
    )
    session.receive_data(first, 0)
    session.tick(200)
    sent = b"".join(session.data_to_send(0, 200))
    assert b"BYTES-OF-THE-LOG" not in sent and not session.is_authenticated
    events = [event for event in iter(session.next_event, None) if isinstance(event, SlaveHelloReceived)]
    assert events == [] and (session.hello, session.next_offset, session.transferred_bytes) == (None, -1, 0)


# The metrics port.


def test_metrics() -> None:
    server = Server(10, lambda given: given == "Bearer good")
    server.start()
    try:
        status = {path: server.get(path)[0] for path in _PATHS}
    finally:
        server.close()
    public = {"/healthz", "/-/healthy", "/readyz"}
    assert {path for path, found in status.items() if found != 401} == public, "without reasons: test_listener"
