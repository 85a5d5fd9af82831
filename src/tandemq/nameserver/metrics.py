"""Metrics of a name server.

Source: docs/guides/monitoring.md.
"""

from collections.abc import Iterator

from tandemq.boundary import Now
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.nameserver.access import NameServerAccess
from tandemq.nameserver.connections import ConnectionTable
from tandemq.nameserver.registry_service import RegistryHost
from tandemq.nameserver.routes import RouteTable
from tandemq.telemetry.families import Batch, Values, counter, gauge, single
from tandemq.telemetry.turn_times import UNKNOWN_CODE, AnswerKind, TurnTimes

BROKERS = gauge("tandemq_namesrv_brokers", "Registered brokers.", "cluster")
MASTERS = gauge("tandemq_namesrv_masters", "Registered brokers with id 0, by group.", "cluster", "broker")
TOPICS = gauge("tandemq_namesrv_topics", "Topics with a route.")
REQUESTS = counter("tandemq_namesrv_requests_total", "Requests answered, by code.", "request_code", "response_code")
LINKS = gauge("tandemq_namesrv_connections", "Open connections.")
SESSIONS = gauge("tandemq_namesrv_registry_sessions", "Sessions at the registry that this name server hosts.")
FAILED = gauge("tandemq_namesrv_registry_failed", "Whether the registry has stopped because its disk failed.")
REFUSED = counter("tandemq_namesrv_access_refused_total", "Requests refused by access control.")
_REQUESTS, _RESPONSES = frozenset(RequestCode), frozenset(ResponseCode)


class NameServerMetrics:
    """The source of the families above."""

    def __init__(
        self,
        routes: RouteTable,
        connections: ConnectionTable,
        registry: RegistryHost | None,
        access: NameServerAccess,
    ) -> None:
        """Take the collaborators."""
        self.times = TurnTimes()
        self._routes = routes
        self._connections = connections
        self._registry = registry
        self._access = access

    def answered(self, request_code: int, response_code: int) -> None:
        """Count a request; codes that are not known count as one."""
        known = request_code in _REQUESTS
        self.times.answered(AnswerKind(request_code if known else UNKNOWN_CODE, response_code))

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        yield from self.times.collect()
        brokers: Values = {}
        masters: Values = {}
        for cluster, names in self._routes.clusters()["clusterAddrTable"].items():
            for name in names:
                found = self._routes.addresses(cluster, name)
                brokers[cluster,] = brokers.get((cluster,), 0) + len(found)
                masters[cluster, name] = int(0 in found)
            yield None
        yield Batch(BROKERS, brokers)
        yield Batch(MASTERS, masters)
        yield single(TOPICS, self._routes.topic_count)
        yield Batch(REQUESTS, {_labels(kind): buckets.count for kind, buckets in self.times.answers.items()})
        yield single(LINKS, len(self._connections))
        yield single(REFUSED, self._access.refused)
        if self._registry is not None:
            yield single(SESSIONS, self._registry.session_count)
            yield single(FAILED, self._registry.failed is not None)


def _labels(kind: AnswerKind) -> tuple[str, str]:
    request = RequestCode(kind.request_code).name.lower() if kind.request_code in _REQUESTS else "unknown"
    response = ResponseCode(kind.response_code).name.lower() if kind.response_code in _RESPONSES else "unknown"
    return request, response
