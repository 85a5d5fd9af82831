"""Names of topics and groups in requests of gRPC clients, and the client that sent a request.

Source: docs/reference/grpc.md; RocketMQ GrpcValidator, NamespaceUtil.
"""

from typing import NamedTuple

from tandemq.model.topic import (
    FORBIDDEN_FOR_SENDING,
    SYSTEM_TOPICS,
    group_name_error,
    is_system_group,
    topic_name_error,
)
from tandemq.proxy.protocol.messaging_pb2 import Code, Resource
from tandemq.proxy.status import CallRefused

_SYSTEM = SYSTEM_TOPICS | FORBIDDEN_FOR_SENDING


class Caller(NamedTuple):
    """The client of a call, and how long it waits."""

    client_id: str
    peer: str
    """"ip:port" of its connection."""
    deadline_ms: int | None
    """When it gives up, monotonic; None: never."""
    authorization: str = ""
    """Metadata with its user and signature, "" without."""
    date: str = ""
    """Metadata that is signed."""
    link: int = 0
    """Its connection."""
    user: str = ""
    """Its user; "" without access control."""
    limited_user: str = ""
    """Its user, if what that sends is limited."""


def name_of(resource: Resource) -> str:
    """Return the name that brokers know a topic or group by: with its namespace, if it has one."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name


def resource_of(name: str) -> Resource:
    """Return the resource that a topic or group is: its namespace is in its name, if it has one."""
    namespace, percent, rest = name.partition("%")
    return Resource(resource_namespace=namespace, name=rest) if percent and namespace else Resource(name=name)


def topic_of(resource: Resource) -> str:
    """Return the name of a topic.

    Raises:
        CallRefused: it is none, or that of a topic which belongs to brokers.
    """
    name = name_of(resource)
    fault = topic_name_error(name)
    if fault is None and (name in _SYSTEM or name.startswith("rmq_sys_")):
        fault = f"the topic {name} belongs to the system"
    if fault is not None:
        raise CallRefused(Code.ILLEGAL_TOPIC, fault)
    return name


def group_of(resource: Resource) -> str:
    """Return the name of a consumer group.

    Raises:
        CallRefused: it is none, or that of a group which belongs to the system.
    """
    name = name_of(resource)
    fault = group_name_error(name)
    if fault is None and is_system_group(name):
        fault = f"the group {name} belongs to the system"
    if fault is not None:
        raise CallRefused(Code.ILLEGAL_CONSUMER_GROUP, fault)
    return name
