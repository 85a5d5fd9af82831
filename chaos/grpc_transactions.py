"""A gRPC producer of transactions, over the same proxies; what must become of them is said in `transactions`.

    half message OK ─► EndTransaction, at any proxy
                └────► forgotten ─► a broker asks, over the proxy that has the client's stream ─► EndTransaction

It stays with a proxy until a call fails, and gives signs of life, as official clients do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from threading import Event
from typing import Any, Protocol

from chaos import filters
from chaos.grpc_clients import Calls
from chaos.grpc_connection import ProxyClient
from chaos.history import History
from chaos.transactions import TransactionHistory
from tandemq.errors import NetworkError
from tandemq.model.transactions import TransactionState
from tandemq.proxy.protocol import messaging_pb2 as pb

NAME = "u"
"""Tag of the messages, and beginning of their bodies."""
PACE_S = 0.02
_BEAT_S, _CALL_S = 0.2, 3.0
_ATTEMPTS = 3
_COMMIT, _ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
_RESOLUTIONS = {_COMMIT: pb.TransactionResolution.COMMIT, _ROLLBACK: pb.TransactionResolution.ROLLBACK}


class Client(Calls, Protocol):
    """A client that takes commands; see `ProxyClient`."""

    def take_commands(self) -> list[pb.TelemetryCommand]:
        """Return what proxies have sent on their own since the last call."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def client_of(proxies: Sequence[str], topic: str) -> ProxyClient:
    """Return a client that publishes a topic. `proxies`: addresses."""
    publishing = pb.Publishing(topics=[pb.Resource(name=topic)])
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
    return ProxyClient(proxies, "chaos@transactions", settings, stays=True)


class GrpcTransactionClient:
    """Makes transactions until it is stopped, then answers checks until the brokers have no more."""

    def __init__(self, client: Client, topic: str, history: History) -> None:
        """`client`: made by `client_of`."""
        self._client = client
        self._topic = pb.Resource(name=topic)
        self._history = history
        self.transactions = TransactionHistory(name=NAME)
        self.is_done = Event()
        """Set once no more transactions are made."""
        self.ends: Counter[str] = Counter()
        """Outcomes of requests that end a transaction."""

    def run(self, is_over: Event, drained: Event, pace_s: float = PACE_S) -> None:
        """Make transactions until `is_over`, answer checks until `drained`. `pace_s`: pause after each."""
        number = 0
        while not is_over.wait(pace_s):
            number += 1
            self._make(number)
            self._answer_checks()
        self.is_done.set()
        while not drained.wait(_BEAT_S):
            self._beat()
            self._answer_checks()
        self._client.close()

    def _make(self, number: int) -> None:
        """Commit five of ten transactions, roll back two, forget three."""
        body, known = f"{NAME}-{number}", self.transactions
        self._history.sending(body, NAME, is_half=True)
        turn = number % 10
        state = None if turn > 6 else _COMMIT if turn < 5 else _ROLLBACK
        entry = self._send(body)
        if entry is None:
            if state is not None:
                known.decided(body, _ROLLBACK)  # if it is stored, checks are answered so
            return
        known.half_stored(body)
        if state is not None:
            known.decided(body, state)
            self._end(body, entry.transaction_id, state, pb.TransactionSource.SOURCE_CLIENT)

    def _send(self, body: str) -> pb.SendResultEntry | None:
        """Send a half message; return its outcome, None if it was not confirmed."""
        system = pb.SystemProperties(
            message_id=f"grpc{body}",
            tag=NAME,
            keys=[body],
            born_host="chaos",
            body_encoding=pb.Encoding.IDENTITY,
            message_type=pb.MessageType.TRANSACTION,
        )
        own = filters.properties_of(body)
        message = pb.Message(topic=self._topic, system_properties=system, user_properties=own, body=body.encode())
        for _ in range(_ATTEMPTS):
            try:
                response = self._client.call(
                    "SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse, _CALL_S
                )
            except NetworkError:
                self._history.refused("gRPC: no response to a half message")
                continue
            if response.status.code == pb.Code.OK:
                return response.entries[0]
            self._history.refused(f"gRPC: {pb.Code.Name(response.status.code)}: {response.status.message[:120]}")
        return None

    def _end(self, body: str, transaction_id: str, state: TransactionState, source: pb.TransactionSource) -> None:
        """End a transaction; if that fails, a broker asks."""
        request = pb.EndTransactionRequest(
            topic=self._topic,
            message_id=f"grpc{body}",
            transaction_id=transaction_id,
            resolution=_RESOLUTIONS[state],
            source=source,
        )
        try:
            response = self._client.call("EndTransaction", request, pb.EndTransactionResponse, _CALL_S)
        except NetworkError:
            self.ends["no response"] += 1
            return
        self.ends[pb.Code.Name(response.status.code)] += 1
        if response.status.code == pb.Code.OK:
            self.transactions.confirmed += 1
        elif response.status.code == pb.Code.INVALID_TRANSACTION_ID:
            self.transactions.refused.append(f"I11: the end of {body} was refused: {response.status.message[:120]}")

    def _beat(self) -> None:
        request = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)
        try:
            self._client.call("Heartbeat", request, pb.HeartbeatResponse, _CALL_S)
        except NetworkError:
            time.sleep(_BEAT_S)  # the next one goes to another proxy

    def _answer_checks(self) -> None:
        for command in self._client.take_commands():
            if command.HasField("recover_orphaned_transaction_command"):
                check = command.recover_orphaned_transaction_command
                body = check.message.body.decode(errors="replace")
                state = self.transactions.decide(body)
                if state in _RESOLUTIONS:
                    self._end(body, check.transaction_id, state, pb.TransactionSource.SOURCE_SERVER_CHECK)

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return self.transactions.report() | {"ends": dict(self.ends)}
