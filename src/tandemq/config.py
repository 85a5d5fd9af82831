"""Settings of a broker and of a name server: frozen, one per node, validated once, passed whole.

Each field carries RocketMQ's name for it (`key`), under which `broker.conf`, TOML and mqadmin know it.
Times are in the unit the field's name ends with.
"""

from dataclasses import dataclass, field
from typing import Any

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")


def _key(key: str, default: Any) -> Any:
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker."""

    # Who it is.
    cluster: str = _key("brokerClusterName", "DefaultCluster")
    broker_name: str = _key("brokerName", "broker-a")
    broker_id: int = _key("brokerId", 0)
    role: str = _key("brokerRole", "ASYNC_MASTER")
    permission: int = _key("brokerPermission", 6)

    # Where it listens and what it tells others. Port 0: any free one (the fast port then is any free one too).
    bind_address: str = _key("bindAddress", "0.0.0.0")
    advertised_ip: str = _key("brokerIP1", "")
    """Empty: the address of the interface that reaches the name server, else 127.0.0.1."""
    ha_advertised_ip: str = _key("brokerIP2", "")
    """Empty: like brokerIP1."""
    listen_port: int = _key("listenPort", 10911)
    ha_port: int = _key("haListenPort", 10912)
    name_servers: tuple[str, ...] = _key("namesrvAddr", ())
    register_ms: int = _key("registerNameServerPeriod", 30_000)
    register_timeout_ms: int = _key("registerBrokerTimeoutMills", 6_000)
    connections_max: int = _key("maxConnections", 50_000)
    connection_idle_ms: int = _key("serverChannelMaxIdleTimeMillis", 120_000)
    frame_bytes_max: int = _key("frameMaxLength", 16 * MEBIBYTE)

    # Topics and groups.
    auto_create_topic: bool = _key("autoCreateTopicEnable", True)
    auto_create_group: bool = _key("autoCreateSubscriptionGroup", True)
    default_queue_nums: int = _key("defaultTopicQueueNums", 8)
    cluster_topic: bool = _key("clusterTopicEnable", True)
    broker_topic: bool = _key("brokerTopicEnable", True)
    region: str = _key("regionId", "DefaultRegion")
    message_bytes_max: int = _key("maxMessageSize", 4 * MEBIBYTE)
    reject_transactions: bool = _key("rejectTransactionMessage", False)

    # The store.
    store_path: str = _key("storePathRootDir", "store")
    segment_bytes: int = _key("mappedFileSizeCommitLog", GIBIBYTE)
    queue_file_bytes: int = _key("mappedFileSizeConsumeQueue", 6_000_000)
    index_enable: bool = _key("messageIndexEnable", True)
    index_slots: int = _key("maxHashSlotNum", 5_000_000)
    index_entries: int = _key("maxIndexNum", 20_000_000)
    query_messages_max: int = _key("maxMsgsNumBatch", 64)
    query_default_max: int = _key("defaultQueryMaxNum", 32)
    flush_type: str = _key("flushDiskType", "ASYNC_FLUSH")
    flush_interval_ms: int = _key("flushIntervalCommitLog", 500)
    sync_flush_timeout_ms: int = _key("syncFlushTimeout", 5_000)
    queue_flush_interval_ms: int = _key("flushIntervalConsumeQueue", 1_000)
    offsets_persist_ms: int = _key("flushConsumerOffsetInterval", 5_000)
    delay_persist_ms: int = _key("flushDelayOffsetInterval", 10_000)

    # Retention.
    reserved_hours: int = _key("fileReservedTime", 72)
    delete_when: str = _key("deleteWhen", "04")
    clean_interval_ms: int = _key("cleanResourceInterval", 10_000)
    disk_used_ratio_max: int = _key("diskMaxUsedSpaceRatio", 75)
    """Percent; above it expired files go at any hour."""
    disk_force_ratio: float = _key("diskSpaceCleanForciblyRatio", 0.85)
    """Above it files go whatever their age, even those a slave or an open delay still needs; that is logged."""
    disk_full_ratio: float = _key("diskSpaceWarningLevelRatio", 0.90)
    """Above it sends are refused with SERVICE_NOT_AVAILABLE until there is room again."""
    clean_force_enable: bool = _key("cleanFileForciblyEnable", True)

    # Replication.
    ha_master_address: str = _key("haMasterAddress", "")
    ha_protocol: str = _key("haProtocol", "auto")
    """What a slave speaks: `tandemq`, `classic` (a Java master), or `auto`: it asks the master."""
    ha_classic_peers: tuple[str, ...] = _key("haClassicPeers", ())
    """IP addresses of Java slaves: served, and counted as one replica per address. Nobody else is let in unintroduced."""
    ha_heartbeat_ms: int = _key("haSendHeartbeatInterval", 5_000)
    ha_housekeeping_ms: int = _key("haHousekeepingInterval", 20_000)
    ha_reconnect_ms: int = _key("haReconnectInterval", 5_000)
    ha_batch_bytes: int = _key("haTransferBatchSize", 32 * 1024)
    ha_lag_bytes_max: int = _key("haSlaveFallbehindMax", 256 * MEBIBYTE)
    ha_bytes_per_second: int = _key("maxHaTransferByteInSecond", 0)
    """Per slave; 0: no limit."""
    slave_timeout_ms: int = _key("slaveTimeout", 3_000)
    in_sync_replicas: int = _key("inSyncReplicas", 2)
    """Copies a SYNC_MASTER needs for SEND_OK, its own included."""
    metadata_sync_ms: int = _key("metadataSyncInterval", 10_000)
    accept_loss_ms: int = _key("acceptLossTimeout", 30_000)
    """After a stop that may have lost bytes: how long an ASYNC_MASTER waits for a slave that has them."""
    sync_from_last_file: bool = _key("syncFromLastFile", False)
    """Whether an empty TandemQ slave copies only the last file. Classic slaves always do."""

    # Consuming.
    long_polling: bool = _key("longPollingEnable", True)
    short_polling_ms: int = _key("shortPollingTimeMills", 1_000)
    slave_read_enable: bool = _key("slaveReadEnable", False)
    memory_ratio_max: int = _key("accessMessageInMemoryMaxRatio", 40)
    """Percent of the machine's memory; a consumer further behind than this is sent to the slave, if allowed."""
    transfer_bytes_max: int = _key("maxTransferBytesOnMessageInMemory", 256 * 1024)
    transfer_messages_max: int = _key("maxTransferCountOnMessageInMemory", 32)
    client_expiry_ms: int = _key("clientChannelExpiredTimeout", 120_000)
    lock_live_ms: int = _key("lockMaxLiveTime", 60_000)
    delay_levels: str = _key("messageDelayLevel", DELAY_LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One name server."""

    bind_address: str = _key("bindAddress", "0.0.0.0")
    listen_port: int = _key("listenPort", 9876)
    data_path: str = _key("kvConfigPath", "namesrv")
    broker_expiry_ms: int = _key("brokerExpiry", 120_000)
    """A broker not heard of for this long is dropped from all routes."""
    order_message_enable: bool = _key("orderMessageEnable", False)
    connections_max: int = _key("maxConnections", 50_000)
    connection_idle_ms: int = _key("serverChannelMaxIdleTimeMillis", 120_000)
    frame_bytes_max: int = _key("frameMaxLength", 16 * MEBIBYTE)
