"""A static topic on running brokers, as `mqadmin updateStaticTopic` creates it."""

from lab.sim.workload.static_topic_requests import segment, update_request
from tandemq.client.connection import BlockingConnection, try_request
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.local import LocalCluster
from tests.unit.broker.features.static_topics.wired import mapping_of

REFUSAL = "is static, this client has no logical queues"
HINT = "use RocketMQ's Java client 5 or mqadmin for it, or an ordinary topic"


def create_static_topic(cluster: LocalCluster, topic: str, *names: str, queues: int = 2) -> None:
    """Create a static topic on the masters of broker groups, in queue 0 of each; return when name servers know it."""
    for number, name in enumerate(names):
        mapping = mapping_of(topic, name, {number: [segment(0, name, 0, 0)]}, total=len(names))
        with BlockingConnection(cluster.broker(name).address) as opened:
            answer = opened.request(update_request(mapping, queues))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    for server in cluster.name_servers.split(";"):
        cluster.wait_until(lambda server=server: _is_known(server, topic, len(names)))  # type: ignore[misc]


def _is_known(server: str, topic: str, brokers: int) -> bool:
    answer = try_request(server, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}))
    return answer is not None and answer.code == ResponseCode.SUCCESS and answer.body.count(b'"totalQueues"') == brokers


def end_of(cluster: LocalCluster, name: str, topic: str) -> str:
    """Return the end of queue 0 of a broker."""
    place = {"topic": topic, "queueId": "0", "lo": "false"}
    answer = try_request(cluster.broker(name).address, Command(RequestCode.GET_MAX_OFFSET, fields=place))
    assert answer is not None
    return answer.fields["offset"]
