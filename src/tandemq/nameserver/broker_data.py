"""Contents of the name server's tables: registrations, queues of a topic, versions, and notices about a group.

Plain values without an owner.
Source: docs/reference/requests.md, "Name server"; RocketMQ RegisterBrokerBody, QueueData, DataVersion.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MASTER_ID = 0


class Version(NamedTuple):
    """The data version of a broker's topic table; compared as a whole."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def as_json(self) -> dict[str, int]:
        """The version as peers encode it."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


NO_VERSION = Version()


class TopicQueues(NamedTuple):
    """The queues of one topic on one broker group."""

    perm: int
    read_queue_nums: int
    write_queue_nums: int
    topic_sys_flag: int = 0

    def as_json(self, broker_name: str) -> dict[str, Any]:
        """An entry of `queueDatas` in a route."""
        return {
            "brokerName": broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The content of one REGISTER_BROKER request."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: Version = NO_VERSION
    topics: dict[str, TopicQueues] = field(default_factory=dict)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Queue mappings of static topics (5.x), passed on unchanged."""
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int | None = None
    """Silence after which the broker wants to be dropped; None: the name server's setting."""
    acting_master: bool = False
    """Whether a slave of this group may act as its master (5.x): then clients may not write without a master."""
    zone: str | None = None
    """The broker's zone, for zone-aware clients."""
    weight: int | None = None
    """The group's share of the writes while this broker is the master."""
    mode: str = ""
    """The failover mode of the group; empty for static."""

    @property
    def route_attributes(self) -> dict[str, Any]:
        """Attributes that routes carry for the group while this broker is its first member; only those that are set."""
        attributes = {"zoneName": self.zone, "weight": self.weight, "failoverMode": self.mode or None}
        return {name: value for name, value in attributes.items() if value is not None}


class MasterAddress(NamedTuple):
    """The master's addresses for a registering slave; empty for the master itself, and while there is no master."""

    address: str = ""
    ha_address: str = ""


class MinIdChange(NamedTuple):
    """A group's smallest broker id changed: a member left (`offline`) or joined (`ha_address`)."""

    broker_name: str
    broker_id: int
    address: str
    offline: str
    ha_address: str
    links: list[int]
    """Connections of the members to notify."""


class SystemTopics(NamedTuple):
    """Topics named after clusters and brokers, and the address of a broker that can list further system topics."""

    topics: list[str]
    address: str | None
