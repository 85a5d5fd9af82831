"""Remarks for requests that no node answers: the feature that is missing, and what to do instead.

mqadmin shows the remark of a response to its user, so it names the request and a way out. A request that is in no table
gets RocketMQ's remark.

Source: RocketMQ RequestCode; docs/reference/mqadmin.md.
"""

from typing import NamedTuple


class _Feature(NamedTuple):
    """A feature of RocketMQ that TandemQ lacks."""

    reason: str
    """What is missing, and what to do instead."""
    requests: dict[int, str]
    """Names of its requests by code."""


_CONTAINERS = _Feature(
    "there are no broker containers; every broker is a process of its own: start or stop `tandemq broker -c FILE`",
    {902: "ADD_BROKER", 903: "REMOVE_BROKER"},
)
_CONTROLLERS = _Feature(
    "there are no controllers; with registryAddr a group elects its master itself: `tandemq ha status` shows it, "
    "`tandemq ha switch` changes it, `tandemq ha config` changes the group",
    {
        1001: "CONTROLLER_ALTER_SYNC_STATE_SET",
        1002: "CONTROLLER_ELECT_MASTER",
        1003: "CONTROLLER_REGISTER_BROKER",
        1004: "CONTROLLER_GET_REPLICA_INFO",
        1005: "CONTROLLER_GET_METADATA_INFO",
        1006: "CONTROLLER_GET_SYNC_STATE_DATA",
        1008: "NOTIFY_BROKER_ROLE_CHANGED",
        1009: "UPDATE_CONTROLLER_CONFIG",
        1010: "GET_CONTROLLER_CONFIG",
        1011: "CLEAN_BROKER_DATA",
        1012: "CONTROLLER_GET_NEXT_BROKER_ID",
        1013: "CONTROLLER_APPLY_BROKER_ID",
    },
)
_HA_MARKS = _Feature(
    "the offset from which a slave copies follows from replication and is not set by hand: `tandemq ha status`",
    {906: "EXCHANGE_BROKER_HA_INFO", 908: "RESET_MASTER_FLUSH_OFFSET"},
)
_COLD_DATA = _Feature(
    "reads of cold data are not throttled and the kernel decides what it reads ahead, so nothing is configured here; "
    "with slaveReadEnable a consumer that is far behind reads from a slave",
    {
        2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
        2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
        2003: "GET_COLD_DATA_FLOW_CTR_INFO",
        2004: "SET_COMMITLOG_READ_MODE",
    },
)
_ROCKSDB = _Feature(
    "queues and tables are files, not RocksDB: tables are JSON below config/ already, and `tandemq log verify` checks "
    "the queues",
    {354: "CHECK_ROCKSDB_CQ_WRITE_PROGRESS", 355: "EXPORT_ROCKSDB_CONFIG_TO_JSON"},
)
_SHOWN_KEYS = _Feature(
    "its response has the keys of all accounts; `tandemq acl list` shows what they may do",
    {
        54: "GET_BROKER_CLUSTER_ACL_CONFIG",
    },
)
_POP = _Feature(
    "POP keeps its checkpoints in the log: there is no KV store to be left",
    {
        200056: "POP_ROLLBACK",
    },
)
_WITHOUT_HANDLER = _Feature(
    "brokers of RocketMQ 4.9 and 5.3 do not answer it either",
    {
        13: "QUERY_BROKER_OFFSET",
        22: "GET_TOPIC_CONFIG_LIST",
        23: "GET_TOPIC_NAME_LIST",
        27: "TRIGGER_DELETE_FILES",
        47: "GET_CLIENT_CONFIG",
        209: "SUSPEND_CONSUMER",
        210: "RESUME_CONSUMER",
        211: "RESET_CONSUMER_OFFSET_IN_CONSUMER",
        212: "RESET_CONSUMER_OFFSET_IN_BROKER",
        213: "ADJUST_CONSUMER_THREAD_POOL",
        214: "WHO_CONSUME_THE_MESSAGE",
        301: "REGISTER_FILTER_SERVER",
        302: "REGISTER_MESSAGE_FILTER_CLASS",
    },
)
_REMARKS = {
    code: f" request type {code} not supported ({name}): {feature.reason}"
    for feature in (
        _CONTAINERS,
        _CONTROLLERS,
        _HA_MARKS,
        _COLD_DATA,
        _ROCKSDB,
        _SHOWN_KEYS,
        _POP,
        _WITHOUT_HANDLER,
    )
    for code, name in feature.requests.items()
}
UNSUPPORTED_CODES = frozenset(_REMARKS)
"""Codes of RocketMQ that no node answers, with a remark of their own."""


def unsupported_remark(code: int) -> str:
    """Return the remark for a request that the node has no handler for."""
    return _REMARKS.get(code, f" request type {code} not supported")
