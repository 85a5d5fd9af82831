"""The gRPC producer of transactions in `make chaos`: what it ends, and what it records of responses made by hand."""

from threading import Event
from typing import TypeVar

from google.protobuf.message import Message as Protobuf

from chaos.grpc_transactions import NAME, GrpcTransactionClient
from chaos.history import History
from tandemq.errors import NetworkError
from tandemq.model.transactions import TransactionState
from tandemq.proxy.protocol import messaging_pb2 as pb

R = TypeVar("R", bound=Protobuf)
OK = pb.Status(code=pb.Code.OK)
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


class Proxy:
    """A proxy that confirms half messages and ends, and asks for given transactions once the client beats."""

    def __init__(self, count: int) -> None:
        """`count`: number of half messages at which the client stops."""
        self.is_over, self.drained = Event(), Event()
        self.lost: set[str] = set()
        """Bodies of half messages without a response."""
        self.end_status: pb.Status | None = OK
        self.asked: list[str] = []
        """Bodies that the brokers ask for, one with each beat."""
        self.halves: list[str] = []
        self.ends: list[tuple[str, str]] = []
        """Transaction and resolution of each end."""
        self.is_closed = False
        self._left = count
        self._commands: list[pb.TelemetryCommand] = []

    def call(self, method: str, request: Protobuf, response: type[R], timeout_s: float) -> R:
        assert timeout_s > 0
        found = self._answer(request)
        if found is None:
            raise NetworkError("lost")
        assert isinstance(found, response), method
        return found

    def stream(self, method: str, request: Protobuf, timeout_s: float) -> list[bytes]:
        raise AssertionError(method)

    def _answer(self, request: Protobuf) -> Protobuf | None:
        if isinstance(request, pb.SendMessageRequest):
            body = request.messages[0].body.decode()
            assert request.messages[0].system_properties.message_type == pb.MessageType.TRANSACTION
            self.halves.append(body)
            if body not in self.halves[:-1]:
                self._left -= 1
                if not self._left:
                    self.is_over.set()
            if body in self.lost:
                return None
            return pb.SendMessageResponse(
                status=OK, entries=[pb.SendResultEntry(status=OK, transaction_id=f"id of {body}")]
            )
        if isinstance(request, pb.EndTransactionRequest):
            self.ends.append((request.transaction_id, pb.TransactionResolution.Name(request.resolution)))
            return pb.EndTransactionResponse(status=self.end_status) if self.end_status is not None else None
        if self.asked:
            body = self.asked.pop(0)
            check = pb.RecoverOrphanedTransactionCommand(
                message=pb.Message(body=body.encode()), transaction_id=f"id of {body}"
            )
            self._commands.append(pb.TelemetryCommand(recover_orphaned_transaction_command=check))
        else:
            self.drained.set()
        return pb.HeartbeatResponse(status=OK)

    def take_commands(self) -> list[pb.TelemetryCommand]:
        commands, self._commands = self._commands, []
        return commands

    def close(self) -> None:
        self.is_closed = True


def run(proxy: Proxy) -> GrpcTransactionClient:
    client = GrpcTransactionClient(proxy, "Chaos", History())
    client.run(proxy.is_over, proxy.drained)
    assert client.is_done.is_set() and proxy.is_closed
    return client


def test_half_of_the_transactions_is_committed_some_are_rolled_back_others_forgotten() -> None:
    proxy = Proxy(10)
    known = run(proxy).transactions
    assert known.due == {f"{NAME}-{number}" for number in (1, 2, 3, 4, 10)}
    assert {body for body, state in known.outcomes.items() if state is ROLLBACK} == {f"{NAME}-5", f"{NAME}-6"}
    assert known.undecided == {f"{NAME}-{number}" for number in (7, 8, 9)}
    assert [text[:4] for text in known.check(known.due)] == ["I11:"], "nobody has asked for the forgotten ones"
    assert dict(proxy.ends)[f"id of {NAME}-5"] == "ROLLBACK"


def test_forgotten_transactions_are_decided_when_a_broker_asks() -> None:
    proxy = Proxy(10)
    proxy.asked = [f"{NAME}-{number}" for number in (7, 8, 9, 9)]
    client = run(proxy)
    known = client.transactions
    assert (known.outcomes[f"{NAME}-7"], known.outcomes[f"{NAME}-8"]) == (COMMIT, ROLLBACK)
    assert proxy.ends.count((f"id of {NAME}-9", "COMMIT")) == 1, "it was undecided the first time"
    assert known.check(known.due) == []
    assert (known.checks, client.report()["ends"]) == (4, {"OK": 10})


def test_half_message_without_a_response_is_rolled_back_when_a_broker_asks() -> None:
    proxy = Proxy(1)
    proxy.lost, proxy.asked = {f"{NAME}-1"}, [f"{NAME}-1"]
    known = run(proxy).transactions
    assert proxy.halves == [f"{NAME}-1"] * 3
    assert proxy.ends == [(f"id of {NAME}-1", "ROLLBACK")]
    assert known.stored == set()


def test_end_without_a_response_is_left_to_the_brokers_and_a_refused_id_is_a_violation() -> None:
    proxy = Proxy(1)
    proxy.end_status = None
    client = run(proxy)
    assert client.transactions.check({f"{NAME}-1"}) == []
    assert client.report()["ends"] == {"no response": 1}
    proxy = Proxy(1)
    proxy.end_status = pb.Status(code=pb.Code.INVALID_TRANSACTION_ID, message="which one?")
    (violation,) = run(proxy).transactions.check({f"{NAME}-1"})
    assert violation == f"I11: the end of {NAME}-1 was refused: which one?"
