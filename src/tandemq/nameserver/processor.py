"""Request handlers of the name server, by request code.

Errors in a request are answered SYSTEM_ERROR (or the error's own code) with a remark; an unknown code is answered
REQUEST_CODE_NOT_SUPPORTED. A refused registration changes nothing: the previous one stays valid, and its broker counts
as alive.

Owner: the name server's node. Does not know: connections (only their numbers), frames.
Source: docs/reference/requests.md, "Name server"; RocketMQ DefaultRequestProcessor.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tandemq import __version__
from tandemq.boundary import Now
from tandemq.codec.remoting.fastjson import dumps_java, loads
from tandemq.config.files import as_properties
from tandemq.errors import ConfigError, ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import ORDER_NAMESPACE
from tandemq.model.unsupported import unsupported_remark
from tandemq.nameserver.access import NameServerRight
from tandemq.nameserver.kv_config import KeyValues
from tandemq.nameserver.registration import (
    boolean_field,
    integer_field,
    name_field,
    read_queue_datas,
    read_registration,
    read_version,
    required,
)
from tandemq.nameserver.registry_service import CODES as REGISTRY_CODES
from tandemq.nameserver.registry_service import RegistryHost
from tandemq.nameserver.routes import UNIT_FLAG, UNIT_SUB_FLAG, RouteTable
from tandemq.nameserver.running_config import RunningConfig

_STRICT_JSON_FROM_VERSION = 401
"""Clients from 4.9.4 on parse standard JSON; older ones split Java's dialect as text."""
_log = logging.getLogger(__name__)

_Handle = Callable[[Command, int, Now], Command | None]


class Handler(NamedTuple):
    """What answers the requests of a code."""

    handle: _Handle
    right: NameServerRight


class DefaultRequestProcessor:
    """Carries out requests on routes, key-value configuration, settings and the hosted registry."""

    def __init__(
        self, config: RunningConfig, routes: RouteTable, kv_config: KeyValues, registry: RegistryHost | None
    ) -> None:
        """`registry`: None if this name server hosts none."""
        self._config = config
        self._routes = routes
        self._kv_config = kv_config
        self._since_ms = 0
        """When a version was asked for first: those of another process, or name server, differ."""
        self.handlers = self._table()
        """By request code."""
        if registry is not None:
            self.handlers |= dict.fromkeys(REGISTRY_CODES, Handler(registry.take, NameServerRight.PROOF))

    def process(self, request: Command, link: int, now: Now) -> Command | None:
        """Return the response to a request; None if the registry responds later.

        Raises:
            RemoteError, StoreError: the request cannot be carried out.
        """
        handler = self.handlers.get(request.code)
        if handler is None:
            return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported_remark(request.code))
        return handler.handle(request, link, now)

    def _table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: Handler(self._get_route, NameServerRight.ROUTE),
            RequestCode.TANDEM_ROUTES_VERSION: Handler(self._routes_version, NameServerRight.READ),
            RequestCode.REGISTER_BROKER: Handler(self._register_broker, NameServerRight.CHANGE),
            RequestCode.UNREGISTER_BROKER: Handler(self._unregister_broker, NameServerRight.CHANGE),
            RequestCode.QUERY_DATA_VERSION: Handler(self._query_data_version, NameServerRight.CHANGE),
            RequestCode.BROKER_HEARTBEAT: Handler(self._broker_heartbeat, NameServerRight.CHANGE),
            RequestCode.GET_BROKER_MEMBER_GROUP: Handler(self._get_member_group, NameServerRight.READ),
            RequestCode.GET_BROKER_CLUSTER_INFO: Handler(self._get_cluster_info, NameServerRight.READ),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: Handler(self._register_topic, NameServerRight.CHANGE),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: Handler(self._delete_topic, NameServerRight.CHANGE),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: Handler(self._wipe_write_permission, NameServerRight.CHANGE),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: Handler(self._add_write_permission, NameServerRight.CHANGE),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Handler(self._all_topics, NameServerRight.READ),
            RequestCode.GET_TOPICS_BY_CLUSTER: Handler(self._topics_by_cluster, NameServerRight.READ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Handler(self._system_topics, NameServerRight.READ),
            RequestCode.GET_UNIT_TOPIC_LIST: Handler(self._unit_topics, NameServerRight.READ),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Handler(self._unit_sub_topics, NameServerRight.READ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Handler(
                self._unit_sub_but_no_unit_topics, NameServerRight.READ
            ),
            RequestCode.PUT_KV_CONFIG: Handler(self._put_kv, NameServerRight.CHANGE),
            RequestCode.GET_KV_CONFIG: Handler(self._get_kv, NameServerRight.READ),
            RequestCode.DELETE_KV_CONFIG: Handler(self._delete_kv, NameServerRight.CHANGE),
            RequestCode.GET_KVLIST_BY_NAMESPACE: Handler(self._get_kv_list, NameServerRight.READ),
            RequestCode.UPDATE_NAMESRV_CONFIG: Handler(self._update_config, NameServerRight.CHANGE),
            RequestCode.GET_NAMESRV_CONFIG: Handler(self._get_config, NameServerRight.CHANGE),
        }

    def _routes_version(self, request: Command, _link: int, now: Now) -> Command:
        self._since_ms = self._since_ms or now.wall_ms
        return request.answer(
            ResponseCode.SUCCESS,
            fields={"version": f"{self._since_ms}-{self._routes.topic_count}-{self._routes.changes}"},
        )

    def _get_route(self, request: Command, _link: int, _now: Now) -> Command:
        topic = required(request, "topic")
        strict = request.version >= _STRICT_JSON_FROM_VERSION or boolean_field(request, "acceptStandardJsonOnly")
        order = self._kv_config.get(ORDER_NAMESPACE, topic) if self._config.present.order_message_enable else None
        body = self._routes.route(topic, strict=strict, order=order)
        if body is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic}"
            )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _register_broker(self, request: Command, link: int, now: Now) -> Command:
        try:
            registration = read_registration(request)
        except ProtocolError:
            self._keep_registered(request, now)
            raise
        master = self._routes.register(registration, link, now.mono_ms)
        fields = {"haServerAddr": master.ha_address, "masterAddr": master.address} if master.address else {}
        order = self._kv_config.namespace(ORDER_NAMESPACE)
        return request.answer(
            ResponseCode.SUCCESS, fields=fields, body=b"" if order is None else dumps_java({"table": order})
        )

    def _keep_registered(self, request: Command, now: Now) -> None:
        """Keep the previous registration of a broker whose new one cannot be read: the broker is alive."""
        names = ("clusterName", "brokerName", "brokerAddr")
        cluster, name, address = (request.fields.get(key, "") for key in names)
        with suppress(ProtocolError):
            if self._routes.is_registered(cluster, name, integer_field(request, "brokerId"), address):
                self._routes.touch(cluster, address, now.mono_ms)

    def _unregister_broker(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.unregister(required(request, "brokerName"), required(request, "brokerAddr"))
        return request.answer(ResponseCode.SUCCESS)

    def _query_data_version(self, request: Command, _link: int, now: Now) -> Command:
        asked = read_version(loads(request.body)) if request.body else None
        known = self._routes.touch(required(request, "clusterName"), required(request, "brokerAddr"), now.mono_ms)
        return request.answer(
            ResponseCode.SUCCESS,
            fields={"changed": "false" if known is not None and known == asked else "true"},
            body=b"" if known is None else dumps_java(known.as_json()),
        )

    def _broker_heartbeat(self, request: Command, _link: int, now: Now) -> Command:
        self._routes.touch(required(request, "clusterName"), required(request, "brokerAddr"), now.mono_ms)
        return request.answer(ResponseCode.SUCCESS)

    def _get_member_group(self, request: Command, _link: int, _now: Now) -> Command:
        cluster, name = required(request, "clusterName"), required(request, "brokerName")
        group = {"brokerAddrs": self._routes.addresses(cluster, name), "brokerName": name, "cluster": cluster}
        return request.answer(ResponseCode.SUCCESS, body=dumps_java({"brokerMemberGroup": group}))

    def _get_cluster_info(self, request: Command, _link: int, _now: Now) -> Command:
        body = self._routes.encoded_list(("clusters",), self._routes.clusters)
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _register_topic(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.add_topic(name_field(request, "topic"), read_queue_datas(request.body))
        return request.answer(ResponseCode.SUCCESS)

    def _delete_topic(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.delete_topic(required(request, "topic"), request.fields.get("clusterName", ""))
        return request.answer(ResponseCode.SUCCESS)

    def _wipe_write_permission(self, request: Command, _link: int, _now: Now) -> Command:
        count = self._routes.wipe_write_permission(required(request, "brokerName"))
        return request.answer(ResponseCode.SUCCESS, fields={"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: Command, _link: int, _now: Now) -> Command:
        count = self._routes.add_write_permission(required(request, "brokerName"))
        return request.answer(ResponseCode.SUCCESS, fields={"addTopicCount": str(count)})

    def _all_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return self._topic_list(request, ("all",), self._routes.topics)

    def _topics_by_cluster(self, request: Command, _link: int, _now: Now) -> Command:
        cluster = required(request, "cluster")
        if not self._routes.has_cluster(cluster):  # no body is kept for a name that a client made up
            return request.answer(ResponseCode.SUCCESS, body=dumps_java({"topicList": []}))
        return self._topic_list(request, ("cluster", cluster), lambda: self._routes.topics_of_cluster(cluster))

    def _system_topics(self, request: Command, _link: int, _now: Now) -> Command:
        found = self._routes.system_topics()
        body: dict[str, object] = {} if found.address is None else {"brokerAddr": found.address}
        return request.answer(ResponseCode.SUCCESS, body=dumps_java({**body, "topicList": found.topics}))

    def _unit_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return self._flagged(request, UNIT_FLAG)

    def _unit_sub_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return self._flagged(request, UNIT_SUB_FLAG)

    def _unit_sub_but_no_unit_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return self._flagged(request, UNIT_SUB_FLAG, UNIT_FLAG)

    def _flagged(self, request: Command, wanted: int, unwanted: int = 0) -> Command:
        return self._topic_list(request, (wanted, unwanted), lambda: self._routes.topics_with_flag(wanted, unwanted))

    def _topic_list(self, request: Command, key: tuple[object, ...], topics: Callable[[], list[str]]) -> Command:
        body = self._routes.encoded_list(("topics", *key), lambda: {"topicList": topics()})
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _put_kv(self, request: Command, _link: int, _now: Now) -> Command:
        self._kv_config.put(required(request, "namespace"), required(request, "key"), required(request, "value"))
        return request.answer(ResponseCode.SUCCESS)

    def _get_kv(self, request: Command, _link: int, _now: Now) -> Command:
        namespace, key = required(request, "namespace"), required(request, "key")
        value = self._kv_config.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.answer(ResponseCode.SUCCESS, fields={"value": value})

    def _delete_kv(self, request: Command, _link: int, _now: Now) -> Command:
        self._kv_config.delete(required(request, "namespace"), required(request, "key"))
        return request.answer(ResponseCode.SUCCESS)

    def _get_kv_list(self, request: Command, _link: int, _now: Now) -> Command:
        namespace = required(request, "namespace")
        table = self._kv_config.namespace(namespace)
        if table is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return request.answer(ResponseCode.SUCCESS, body=dumps_java({"table": table}))

    def _update_config(self, request: Command, _link: int, _now: Now) -> Command:
        try:
            keys = self._config.update(request.body.decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the settings are not UTF-8: {error}") from error
        except ConfigError as error:
            return request.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        self._routes.expiry_ms = self._config.present.broker_expiry_ms
        _log.info("settings changed keys=%s", ",".join(keys))
        return request.answer(ResponseCode.SUCCESS)

    def _get_config(self, request: Command, _link: int, _now: Now) -> Command:
        settings = as_properties(self._config.present).encode()
        return request.answer(ResponseCode.SUCCESS, fields={"tandemqVersion": __version__}, body=settings)
