"""All operations of the API, each with its method, address and role."""

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.api.handlers import broker_groups, cluster, consumers, limits, messages, pipeline, topics
from tandemq.console.api.operation import Operation

VIEWER, OPERATOR, ADMIN = ConsoleRole.VIEWER, ConsoleRole.OPERATOR, ConsoleRole.ADMIN
_TOPIC = "/topics/{topic}"
_QUEUE = f"{_TOPIC}/queues/{{broker}}/{{queue}}/messages"
_MESSAGE = f"{_QUEUE}/{{offset}}"
_CONSUMERS = "/consumer-groups/{group}"
_BROKERS = "/broker-groups/{name}"

OPERATIONS = (
    Operation("GET", "/token", VIEWER, cluster.get_token),
    Operation("GET", "/cluster", VIEWER, cluster.get_cluster),
    Operation("GET", "/topics", VIEWER, topics.list_topics),
    Operation("POST", "/topics", OPERATOR, topics.create_topic, 201),
    Operation("GET", _TOPIC, VIEWER, topics.get_topic),
    Operation("PUT", _TOPIC, OPERATOR, topics.change_topic),
    Operation("DELETE", _TOPIC, OPERATOR, topics.delete_topic, 204),
    Operation("GET", f"{_TOPIC}/messages", VIEWER, messages.find_stored),
    Operation("POST", f"{_TOPIC}/messages", OPERATOR, topics.send_message, 201),
    Operation("GET", _QUEUE, VIEWER, messages.list_messages),
    Operation("GET", _MESSAGE, VIEWER, messages.get_message),
    Operation("GET", f"{_MESSAGE}/trace", VIEWER, messages.get_trace),
    Operation("POST", f"{_MESSAGE}/resend", OPERATOR, messages.resend_message, 201),
    Operation("GET", "/messages", VIEWER, messages.find_messages),
    Operation("GET", "/messages/by-id", VIEWER, messages.find_message),
    Operation("GET", "/consumer-groups", VIEWER, consumers.list_consumer_groups),
    Operation("POST", "/consumer-groups", OPERATOR, consumers.create_consumer_group, 201),
    Operation("GET", _CONSUMERS, VIEWER, consumers.get_consumer_group),
    Operation("DELETE", _CONSUMERS, OPERATOR, consumers.delete_consumer_group, 204),
    Operation("POST", f"{_CONSUMERS}/offsets/preview", OPERATOR, consumers.preview_reset),
    Operation("POST", f"{_CONSUMERS}/offsets", OPERATOR, consumers.reset_offsets),
    Operation("GET", f"{_CONSUMERS}/dead-letters", VIEWER, consumers.list_dead_letters),
    Operation("POST", f"{_CONSUMERS}/dead-letters/resend", OPERATOR, consumers.resend_dead_letters),
    Operation("GET", "/limits", VIEWER, limits.list_limits),
    Operation("PUT", "/limits", ADMIN, limits.set_limit),
    Operation("DELETE", "/limits", ADMIN, limits.delete_limit, 204),
    Operation("GET", "/broker-groups", VIEWER, broker_groups.list_broker_groups),
    Operation("GET", _BROKERS, VIEWER, broker_groups.get_broker_group),
    Operation("PUT", _BROKERS, ADMIN, broker_groups.save_broker_group),
    Operation("DELETE", _BROKERS, ADMIN, broker_groups.remove_broker_group, 204),
    Operation("POST", f"{_BROKERS}/switch", ADMIN, broker_groups.switch_master),
    Operation("GET", f"{_BROKERS}/takeover", ADMIN, broker_groups.preview_takeover),
    Operation("POST", f"{_BROKERS}/takeover", ADMIN, broker_groups.force_master),
    Operation("GET", "/pipeline", VIEWER, pipeline.get_pipeline),
    Operation("GET", "/audit", ADMIN, broker_groups.list_audit),
)
