"""Consumers that are gRPC clients of a proxy, as the proxy reports them to brokers.

Source: docs/reference/grpc.md, "What operators see".
"""

import msgspec

from tandemq.model.group import ConsumerData
from tandemq.model.java_types import Int32


class ProxiedConsumer(msgspec.Struct, rename="camel"):
    """A consumer that has joined a group."""

    client_id: str
    address: str
    """"ip:port" of the client."""
    language: str
    version: Int32
    consumer: ConsumerData


class ProxiedKey(msgspec.Struct, rename="camel", frozen=True):
    """A consumer that has left a group."""

    group: str
    client_id: str


class ProxiedReport(msgspec.Struct):
    """What has changed since the last report on the same connection."""

    joined: list[ProxiedConsumer] = []
    left: list[ProxiedKey] = []


class ProxiedRefusal(msgspec.Struct, rename="camel"):
    """A consumer that a broker did not take."""

    group: str
    client_id: str
    reason: str


class ProxiedAnswer(msgspec.Struct):
    """Response to a report: the others were taken."""

    refused: list[ProxiedRefusal] = []
