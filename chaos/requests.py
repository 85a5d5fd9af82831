"""Requests of the static topic's clients and administrator: to brokers, and for routes to the name server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tandemq.client.connection import BlockingConnection
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

TOPIC = "ChaosStatic"
QUEUES = 3
RETRY_S = 0.1


class Requests:
    """Connections to brokers and the name server, of one thread; one request at a time in flight."""

    def __init__(self, name_server: str) -> None:
        """No connection is open."""
        self._name_server = name_server
        self._connections: dict[str, BlockingConnection] = {}

    def ask(self, address: str, code: int, fields: Mapping[str, object], body: bytes = b"") -> Command | None:
        """Return the response; None if there is none: the outcome is unknown."""
        command = Command(code, fields={name: str(value) for name, value in fields.items()}, body=body)
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = BlockingConnection(address)
            return connection.request(command)
        except NetworkError:
            self._close(address)
            return None

    def _close(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self._close(address)

    def masters(self) -> dict[str, str]:
        """Return the addresses of the masters by group, as name servers know them."""
        answer = self.ask(self._name_server, RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return {}
        groups = loads(answer.body, is_trusted=True)["brokerAddrTable"]
        return {name: address for name, group in groups.items() if (address := _master_in(group)) is not None}

    def leaders(self) -> dict[int, tuple[str, str]]:
        """Return group and address of the leader of each logical queue, by the route."""
        fields = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        answer = self.ask(self._name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return {}
        route = json.loads(answer.body)
        masters = {group["brokerName"]: _master_in(group) for group in route["brokerDatas"]}
        leaders: dict[int, tuple[str, str]] = {}
        mappings = route.get("topicQueueMappingByBroker") or {}
        for group, info in sorted(mappings.items(), key=lambda item: int(item[1]["epoch"])):
            for number in info["currIdMap"]:
                leaders.pop(int(number), None)
                if (address := masters.get(group)) is not None:
                    leaders[int(number)] = (group, address)
        return leaders


def _master_in(group: Mapping[str, Any]) -> str | None:
    return next((str(address) for number, address in group["brokerAddrs"].items() if int(number) == 0), None)


def wall_ms() -> int:
    """Return the time as messages and epochs have it."""
    return time.time_ns() // 1_000_000
