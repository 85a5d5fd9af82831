"""Calls of gRPC clients over blocking sockets, to one of several proxies.

    call ─► the proxy in use ─┬─► messages of the response
                              └─► none, or too late: NetworkError; the next call asks the next proxy

A client sends its settings on each connection, as official ones do, and takes turns among the proxies. One call at a
time is in flight.
"""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message as Protobuf

from lab.grpc_client import ClientCall, GrpcClient
from tandemq.errors import NetworkError, NotConnected
from tandemq.model.access import Credentials
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.service import AUTHORIZATION, CLIENT_ID, DATE, NAME

CONNECT_S = 2.0
CALLS_PER_PROXY = 50
"""After so many calls the next proxy is used."""
_RECEIVE_BYTES = 1 << 18
R = TypeVar("R", bound=Protobuf)


class GrpcConnection:
    """A connection of one thread to one proxy."""

    def __init__(self, address: str, client_id: str, user: Credentials | None = None) -> None:
        """Connect. `user`: signs the calls.

        Raises:
            NotConnected: the connection failed.
        """
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), CONNECT_S)
        except OSError as error:
            raise NotConnected(f"{address}: {error}") from error
        self._address = address
        self._grpc = GrpcClient()
        self._metadata = {CLIENT_ID: client_id} | (signature(user) if user is not None else {})

    def start(self, method: str, request: Protobuf, *, timeout_s: float = 0, is_open: bool = False) -> ClientCall:
        """Begin a call; its bytes leave with the next `wait`."""
        timeout_ms = int(timeout_s * 1000)
        data = request.SerializeToString()
        return self._grpc.start(
            f"/{NAME}/{method}", data, metadata=self._metadata, timeout_ms=timeout_ms, is_open=is_open
        )

    def wait(self, call: ClientCall, seconds: float) -> list[bytes]:
        """Return the messages of a call's response when it has ended.

        Raises:
            NetworkError: it did not end in time, or not well, or the connection is lost; what was asked for may have
                been done.
        """
        until = time.monotonic() + seconds
        try:
            self._flush()
            while call.status is None:
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise NetworkError(f"{self._address} has closed the connection")
                self._grpc.receive(data)
                self._flush()
        except TimeoutError as error:
            self._grpc.cancel(call)
            raise NetworkError(f"{self._address} does not answer within {seconds:g} s") from error
        except OSError as error:
            raise NetworkError(f"{self._address}: {error}") from error
        if call.status:
            raise NetworkError(f"{self._address} has ended the call with {call.status}: {call.text}")
        return call.messages

    def _flush(self) -> None:
        if data := self._grpc.take_output():
            self._socket.settimeout(CONNECT_S)
            self._socket.sendall(data)

    @property
    def is_leaving(self) -> bool:
        """Whether the proxy asks for no more calls on this connection."""
        return self._grpc.goaway is not None

    def close(self) -> None:
        """Send what is left, and close the connection."""
        try:
            self._flush()
        except OSError:
            pass  # it is lost
        finally:
            self._socket.close()


def signature(user: Credentials) -> dict[str, str]:
    """Return the metadata with which official clients sign."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digits = hmac.digest(user.secret_key.encode(), date.encode(), "sha1").hex().upper()
    signed = f"MQv2-HMAC-SHA1 Credential={user.access_key}, SignedHeaders={DATE}, Signature={digits}"
    return {DATE: date, AUTHORIZATION: signed}


class ProxyClient:
    """A client of several proxies, of one thread."""

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        settings: pb.Settings,
        user: Credentials | None = None,
        *,
        stays: bool = False,
    ) -> None:
        """Connect with the first call.

        Args:
            addresses: of the proxies.
            client_id: of the client.
            settings: sent first on each connection.
            user: signs the calls.
            stays: change the proxy after a lost call only.
        """
        self._addresses = addresses
        self._client_id = client_id
        self._settings = settings
        self._user = user
        self._stays = stays
        self._commands: list[pb.TelemetryCommand] = []
        self._connection: GrpcConnection | None = None
        self._turn = 0
        self._calls = 0
        self.lost = 0
        """Number of calls without a whole response."""

    def call(self, method: str, request: Protobuf, response: type[R], timeout_s: float) -> R:
        """Return the response of a method that has one.

        Raises:
            NetworkError: there is none; what was asked for may have been done.
        """
        (data,) = self.stream(method, request, timeout_s) or [b""]
        return response.FromString(data)

    def stream(self, method: str, request: Protobuf, timeout_s: float) -> list[bytes]:
        """Return the messages of a response.

        Raises:
            NetworkError: there is none; what was asked for may have been done.
        """
        if self._calls >= CALLS_PER_PROXY and not self._stays:
            self._leave()
        try:
            connection = self._connected()
            messages = connection.wait(connection.start(method, request, timeout_s=timeout_s), timeout_s)
        except NetworkError:
            self.lost += 1
            self._leave()
            raise
        self._calls += 1
        if connection.is_leaving:
            self._leave()
        return messages

    def _connected(self) -> GrpcConnection:
        if self._connection is None:
            address = self._addresses[self._turn % len(self._addresses)]
            self._connection = GrpcConnection(address, self._client_id, self._user)
            stream = self._connection.start("Telemetry", pb.TelemetryCommand(settings=self._settings), is_open=True)
            stream.on_message = lambda data: self._commands.append(pb.TelemetryCommand.FromString(data))
        return self._connection

    def take_commands(self) -> list[pb.TelemetryCommand]:
        """Return what proxies have sent on their own since the last call."""
        commands, self._commands = self._commands, []
        return commands

    def _leave(self) -> None:
        self.close()
        self._turn += 1
        self._calls = 0

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
