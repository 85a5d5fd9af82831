"""Settings of a broker and of a name server: one frozen object per node.

Each field has RocketMQ's name (`key`), which `broker.conf`, TOML and mqadmin use, a unit, and a flag whether it can be
changed while the node runs (`live`). The docstring below a field describes it; `make reference` writes
docs/reference/settings.md from these. The end of a field's name gives the unit of a time. `files` reads and writes
files, `validation` checks values.
"""

import re
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from tandemq.errors import ConfigError

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
JAVA_INT_MAX = (1 << 31) - 1
BROKER_BLACK_LIST = (
    "configBlackList",
    # What an acknowledgement promises.
    "flushDiskType",
    "flushIntervalCommitLog",
    "inSyncReplicas",
    # When files are deleted.
    "fileReservedTime",
    "deleteWhen",
    "cleanResourceInterval",
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "cleanFileForciblyEnable",
    # When a transaction is given up, and whether there are any.
    "rejectTransactionMessage",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "transactionsMax",
    # Whether there are timed messages, how long they last, and who may delete them.
    "timerWheelEnable",
    "timerMaxDelaySec",
    "timerRollWindowSlot",
    "timerCongestNumEachSlot",
    "timersMax",
    "recallMessageEnable",
    # Which messages consumers with SQL92 expressions get.
    "enablePropertyFilter",
    "filterSupportRetry",
    # Who may do what.
    "authenticationEnabled",
    "authorizationEnabled",
)
"""Default of a broker's `configBlackList`."""
NAME_SERVER_BLACK_LIST = ("configBlackList", "brokerExpiry", "authenticationEnabled", "routeAuthenticationEnabled")
"""Default of a name server's `configBlackList`."""
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])\Z")


def _setting(key: str, default: Any, unit: str = "", *, live: bool = False, secret: bool = False) -> Any:
    metadata = {"key": key, "unit": unit, "live": live, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of clients, for brokers and name servers alike, by RocketMQ's names; `config.tls` adds `tls.config.file`."""

    tls_mode: str = _setting("tls.server.mode", "permissive")
    """Who may connect, by the first byte: `disabled` (without TLS only), `permissive` (with and without), or
    `enforcing` (with TLS only). Without `tls.server.certPath` or test mode `permissive` means `disabled`."""
    tls_file: str = _setting("tls.config.file", "/etc/rocketmq/tls.properties")
    """Properties file of further `tls.*` settings, read at the start if it exists. Its values override those given
    here, and passwords are read from it alone. See docs/guides/operations.md, "TLS for clients"."""
    tls_test_mode: bool = _setting("tls.test.mode.enable", False)
    """Test mode: a key that is made at the start by the program `openssl`, which no client can verify. RocketMQ's
    default is true."""
    tls_cert_file: str = _setting("tls.server.certPath", "")
    """Certificate for clients, PEM, with the certificates between it and its authority; empty: no TLS."""
    tls_key_file: str = _setting("tls.server.keyPath", "")
    """Private key of `tls.server.certPath`, PEM, not readable by all users."""
    tls_client_auth: str = _setting("tls.server.need.client.auth", "none")
    """Whether clients present certificates: `none`, `optional` or `require`."""
    tls_verify_clients: bool = _setting("tls.server.authClient", False)
    """Whether certificates of clients are verified. Without it they are not asked for, and `require` is refused,
    since RocketMQ accepts any certificate then."""
    tls_ca_file: str = _setting("tls.server.trustCertPath", "")
    """Authorities, PEM, for certificates of clients. Empty: those of the system."""
    tls_enable: str = _setting("tls.enable", "")
    """Whether this node uses TLS on connections that it opens to name servers and brokers, except replication:
    `true` or `false`. Empty: only if `tls.server.mode` is `enforcing`."""
    tls_client_cert_file: str = _setting("tls.client.certPath", "")
    """Certificate that this node presents on connections that it opens."""
    tls_client_key_file: str = _setting("tls.client.keyPath", "")
    """Private key of `tls.client.certPath`."""
    tls_verify_servers: bool = _setting("tls.client.authServer", False)
    """Whether this node verifies the certificates of name servers and brokers."""
    tls_check_host: bool = _setting("tls.client.checkHost", False)
    """Whether verified certificates must also contain the address that this node connects to. RocketMQ never checks
    it."""
    tls_client_ca_file: str = _setting("tls.client.trustCertPath", "")
    """Authorities, PEM, for `tls.client.authServer`. Empty: those of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringConfig(TlsConfig):
    """Log lines and metrics, for brokers and name servers alike, by RocketMQ's names where it has the setting."""

    log_format: str = _setting("logFormat", "text")
    """`text`, or `json` for one JSON object per log line. See docs/guides/monitoring.md, "Logs"."""
    metrics_port: int = _setting("metricsPort", -1)
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 takes any free one, -1: none, unless `metricsExporterType` is
    `PROM`. See docs/guides/monitoring.md."""
    metrics_bind_address: str = _setting("metricsBindAddress", "127.0.0.1")
    """IP address of the interface to listen on for metrics; `0.0.0.0` and `::`: all interfaces, IPv4 and IPv6. They
    have names of topics and groups."""
    metrics_credentials_file: str = _setting("metricsCredentialsFile", "")
    """File of tokens, or `user:password`, of which a request for `/metrics` needs one, a line each; not readable by all
    users, and read again when it changes. Empty: none is needed."""
    metrics_series_max: int = _setting("metricsOtelCardinalityLimit", 50_000)
    """Maximum number of time series of one metric; further ones are left out and counted."""
    metrics_label: str = _setting("metricsLabel", "")
    """Labels that all metrics get in addition, as `name:value,name:value`."""
    metrics_exporter: str = _setting("metricsExporterType", "DISABLE")
    """`OTLP_HTTP` pushes all metrics to an OpenTelemetry collector. `PROM`, RocketMQ's way to switch `/metrics` on, is
    the same as a `metricsPort`. `DISABLE`: neither. See docs/guides/monitoring.md, "Push to a collector"."""
    metrics_prom_port: int = _setting("metricsPromExporterPort", 5557)
    """The `metricsPort` that `metricsExporterType=PROM` stands for, if that is not set."""
    push_target: str = _setting("metricsHttpExporterTarget", "http://127.0.0.1:4318")
    """URL of the collector for `OTLP_HTTP`; without a path `/v1/metrics` is added."""
    push_header_file: str = _setting("metricsHttpExporterHeaderFile", "")
    """File of HTTP headers for the collector, a `Name: value` on each line, for instance a token; not readable by all
    users, and read again when it changes."""
    push_ca_file: str = _setting("metricsHttpExporterCaFile", "")
    """Authorities, PEM, for the certificate of an `https` collector, which is always verified. Empty: those of the
    system."""
    push_interval_ms: int = _setting("metricHttpExporterIntervalInMills", 60_000, "ms")
    """Interval between pushes."""
    push_timeout_ms: int = _setting("metricHttpExporterTimeOutInMills", 3_000, "ms")
    """How long one attempt to push may take."""
    metrics_in_delta: bool = _setting("metricsInDelta", False)
    """Whether counters and histograms are pushed as what was added since the last successful push, instead of since
    the start."""

    @property
    def scrape_port(self) -> int:
        """The port of `/metrics`; 0 takes any free one, -1: none."""
        is_prom = self.metrics_exporter == "PROM" and self.metrics_port == -1
        return self.metrics_prom_port if is_prom else self.metrics_port

    @property
    def has_open_metrics(self) -> bool:
        """Whether any client of another machine may read the metrics: without credentials, beyond the loopback."""
        is_local = ip_address(self.metrics_bind_address).is_loopback
        return not (self.scrape_port == -1 or is_local or self.metrics_credentials_file)

    @property
    def is_monitored(self) -> bool:
        """Whether metrics are collected at all."""
        return self.scrape_port != -1 or self.metrics_exporter == "OTLP_HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(MonitoringConfig):
    """Settings of one broker."""

    # Identity.
    cluster: str = _setting("brokerClusterName", "DefaultCluster")
    """Cluster that the broker belongs to; also a topic of this name if `clusterTopicEnable`."""
    broker_name: str = _setting("brokerName", "broker-a")
    """Name of the broker group: the brokers of one name are a master and its slaves."""
    broker_id: int = _setting("brokerId", 0)
    """0 for the master; each slave has its own number above 0. In a group with a registry any number of its
    configuration."""
    role: str = _setting("brokerRole", "")
    """`ASYNC_MASTER`, `SYNC_MASTER` (SEND_OK needs `inSyncReplicas` copies) or `SLAVE`. Not set: `ASYNC_MASTER` with
    `brokerId` 0, else `SLAVE`. In a group with a registry the group's record decides which broker is the master. In
    mode `slave-consume` its messages then wait for `inSyncReplicas` copies unless this is `ASYNC_MASTER`."""
    permission: int = _setting("brokerPermission", 6, live=True)
    """What clients may do: 4 is read, 2 is write, 6 is both."""
    weight: int = _setting("brokerWeight", 100, live=True)
    """The group's share of the writes, for producers that use weights (TandemQ's): twice the weight, twice the
    messages. 0: no writes while another group accepts them. A group with a registry takes the weight from its group
    configuration."""
    zone: str = _setting("brokerZone", "")
    """Zone of the broker, such as a data centre; producers with a `zone` prefer the groups of their own zone."""
    shards: int = _setting("shards", 1)
    """Number of brokers, each a process, that run on this machine with these settings (`tandemq broker --shards`). See
    docs/guides/sizing.md, "Shards"."""
    shard_of: str = _setting("shardOf", "")
    """`brokerName` of the settings of which this broker is a shard; set by the process that starts the shards."""
    shard_roles_together: bool = _setting("shardRolesTogether", False)
    """In `elect` groups: whether a machine whose shard takes over from a failed master takes the roles of its other
    shards, too, by planned switches."""

    # Addresses, ports and connections.
    bind_address: str = _setting("bindAddress", "0.0.0.0")
    """IP address of the interface to listen on. `0.0.0.0` and `::`: all interfaces, IPv4 and IPv6."""
    advertised_ip: str = _setting("brokerIP1", "")
    """Address advertised to clients: IPv4, IPv6 or a host name. Empty: the address of the interface that reaches the
    name server, else 127.0.0.1."""
    ha_advertised_ip: str = _setting("brokerIP2", "")
    """Address advertised to slaves. Empty: the same as `brokerIP1`."""
    listen_port: int = _setting("listenPort", 10911)
    """Port for clients; 0 takes any free one. The fast port, which answers everything but pulls, is this port minus
    2."""
    ha_port: int = _setting("haListenPort", 0)
    """Port for slaves. 0 or not set: `listenPort` + 1 (10912), or any free port if `listenPort` is 0. RocketMQ 5.3
    reads it the same way; 4.9 uses `listenPort` + 1 whatever the file says."""
    name_servers: tuple[str, ...] = _setting("namesrvAddr", ())
    """Addresses of the name servers, separated by `;`."""
    register_ms: int = _setting("registerNameServerPeriod", 30_000, "ms", live=True)
    """Interval between registrations at the name servers."""
    register_ms_min: int = _setting("registerNameServerPeriodMin", 10_000, "ms")
    """Lower bound of `registerNameServerPeriod`, to which RocketMQ raises a shorter one; tests lower it."""
    register_timeout_ms: int = _setting("registerBrokerTimeoutMills", 6_000, "ms", live=True)
    """How long a registration waits for a name server's response."""
    single_topic_register: bool = _setting("enableSingleTopicRegister", False)
    """Whether a changed topic is registered by REGISTER_TOPIC_IN_NAMESRV instead of a registration with this topic
    only, which a RocketMQ 5 name server with `deleteTopicWithBrokerRegistration` takes for all topics of the broker."""
    connections_max: int = _setting("maxConnections", 50_000, live=True)
    """Maximum number of client connections; further ones are closed when accepted."""
    busy_poll_us: int = _setting("busyPollMicros", 100, "µs")
    """Busy polling: the broker polls for as long before it sleeps, while its recent waits were shorter than this on
    average. Responses come sooner, because waking up takes time, and a core is busy meanwhile. At a steady rate of
    some thousand messages per second waits are longer, and it sleeps. 0: off."""
    connection_idle_ms: int = _setting("serverChannelMaxIdleTimeMillis", 120_000, "ms", live=True)
    """A client's connection is closed after this time without a received byte, or with a request that is still
    incomplete."""
    frame_bytes_max: int = _setting("frameMaxLength", 16 * MEBIBYTE, "bytes")
    """Largest request or response; a longer one closes the connection."""
    unfinished_bytes_max: int = _setting("unfinishedFramesMax", 256 * MEBIBYTE, "bytes")
    """Memory budget for incomplete requests on all connections; beyond it the connections with the oldest large
    ones are closed."""
    untaken_bytes_max: int = _setting("untakenAnswersMax", 512 * MEBIBYTE, "bytes")
    """Memory budget for responses that peers have not read yet, on all connections. Beyond it connections that read
    nothing are closed first, slow readers last."""
    config_black_list: tuple[str, ...] = _setting("configBlackList", BROKER_BLACK_LIST)
    """Settings that cannot be changed while the broker runs, separated by `;`. By default those that can delete
    messages, let them expire, end their delivery, or weaken what an acknowledgement promises."""

    # Access control.
    authentication_enable: bool = _setting("authenticationEnabled", False, live=True)
    """Whether each request of a client must be signed by a user. See docs/reference/access.md."""
    authorization_enable: bool = _setting("authorizationEnabled", False, live=True)
    """Whether users that are not super users need policies for what they do; only with `authenticationEnabled`."""
    acl_enable: bool = _setting("aclEnable", False)
    """Access control with the accounts of RocketMQ 4.9: requests are signed and checked as with the two settings above,
    and accounts in the files of `aclPath` are users, too."""
    acl_path: str = _setting("aclPath", "")
    """Directory of `plain_acl.yml` and `acl/`, for `aclEnable`. Empty: `conf` of the environment's `ROCKETMQ_HOME`,
    else the directory of the broker's own file."""
    init_user: str = _setting("initAuthenticationUser", "", secret=True)
    """A super user, `{"username":"…","password":"…"}`, until one of this name is created."""
    inner_credentials: str = _setting("innerClientAuthenticationCredentials", "", secret=True)
    """The super user with which this broker signs its requests to other brokers, `{"accessKey":"…","secretKey":"…"}`;
    the same at all brokers of a cluster."""
    # Topics and groups.
    auto_create_topic: bool = _setting("autoCreateTopicEnable", True, live=True)
    """Whether a send to an unknown topic creates it."""
    clears_retry_topics: bool = _setting("clearRetryTopicWhenDeleteTopic", True, live=True)
    """Whether the deletion of a topic deletes the topics, too, in which its messages come back to POP consumers."""
    auto_create_group: bool = _setting("autoCreateSubscriptionGroup", True, live=True)
    """Whether an unknown consumer group is created when it first appears."""
    groups_max: int = _setting("maxSubscriptionGroups", 5_000)
    """Maximum number of consumer groups; a request that would create one more is answered with an error."""
    default_queue_nums: int = _setting("defaultTopicQueueNums", 8, live=True)
    """Number of queues of a topic that a send creates."""
    cluster_topic: bool = _setting("clusterTopicEnable", True)
    """Whether the cluster's name is a topic."""
    broker_topic: bool = _setting("brokerTopicEnable", True)
    """Whether the broker's name is a topic."""
    region: str = _setting("regionId", "DefaultRegion")
    """Region reported to clients in responses to sends, for their message traces."""
    trace_topic_enable: bool = _setting("traceTopicEnable", False)
    """Whether the topic for message traces is created at the start. A broker that has it stores `regionId` and
    `traceOn` with every message, as RocketMQ 5.3 always does."""
    trace_topic: str = _setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    """Topic for message traces."""
    trace_on: bool = _setting("traceOn", True, live=True)
    """Whether clients may make traces; `false` is reported to them in responses to sends and with stored messages."""
    store_replies: bool = _setting("storeReplyMessageEnable", True, live=True)
    """Whether replies to requests are stored in the topic `<brokerClusterName>_REPLY_TOPIC` too, beside being passed
    on to the client that sent the request."""
    message_type_check: bool = _setting("enableTopicMessageTypeCheck", False, live=True)
    """Whether a message whose type is not that of its topic (attribute `message.type`) is refused. Sends to topics
    that do not take every type cost more then. In RocketMQ only proxies check this."""
    mixed_message_type: bool = _setting("enableMixedMessageType", False, live=True)
    """Whether topics may get `message.type=MIXED`; topics that have it keep it."""
    message_bytes_max: int = _setting("maxMessageSize", 4 * MEBIBYTE, "bytes", live=True)
    """Largest message body; for a batch, the whole body."""

    # Store.
    store_path: str = _setting("storePathRootDir", "store")
    """Directory of the store; one process at a time uses it."""
    segment_bytes: int = _setting("mappedFileSizeCommitLog", GIBIBYTE, "bytes")
    """Size of a commit-log file; the same on all members of a group."""
    queue_file_bytes: int = _setting("mappedFileSizeConsumeQueue", 6_000_000, "bytes")
    """Size of a consume-queue file, a multiple of 20."""
    index_enable: bool = _setting("messageIndexEnable", True)
    """Whether messages can be queried by key."""
    index_slots: int = _setting("maxHashSlotNum", 5_000_000)
    """Number of hash slots of an index file."""
    index_entries: int = _setting("maxIndexNum", 20_000_000)
    """Number of entries of an index file."""
    query_messages_max: int = _setting("maxMsgsNumBatch", 64, live=True)
    """Maximum number of messages that one query by key returns."""
    query_default_max: int = _setting("defaultQueryMaxNum", 32, live=True)
    """Number of messages that a query returns if it does not ask for a number."""
    flush_type: str = _setting("flushDiskType", "ASYNC_FLUSH", live=True)
    """`ASYNC_FLUSH`: fdatasync every `flushIntervalCommitLog`. `SYNC_FLUSH`: fdatasync before each response, one
    for all waiting requests."""
    flush_interval_ms: int = _setting("flushIntervalCommitLog", 500, "ms", live=True)
    """Interval between flushes of the commit log with `ASYNC_FLUSH`."""
    sync_flush_timeout_ms: int = _setting("syncFlushTimeout", 5_000, "ms", live=True)
    """After this time a sender that waits for the disk gets FLUSH_DISK_TIMEOUT."""
    queue_flush_interval_ms: int = _setting("flushIntervalConsumeQueue", 1_000, "ms", live=True)
    """Interval between flushes of consume queues and index."""
    offsets_persist_ms: int = _setting("flushConsumerOffsetInterval", 5_000, "ms", live=True)
    """Interval between writes of `consumerOffset.json`."""
    delay_persist_ms: int = _setting("flushDelayOffsetInterval", 10_000, "ms", live=True)
    """Interval between writes of `delayOffset.json`."""

    # Transactions.
    reject_transactions: bool = _setting("rejectTransactionMessage", False, live=True)
    """Whether transactional messages are refused."""
    transaction_timeout_ms: int = _setting("transactionTimeOut", 6_000, "ms", live=True)
    """Age at which an open transaction is checked first, unless the producer asks for a later time."""
    transaction_checks_max: int = _setting("transactionCheckMax", 15, live=True)
    """Number of checks after which a transaction is given up; its half message stays in
    `TRANS_CHECK_MAX_TIME_TOPIC`."""
    transaction_check_interval_ms: int = _setting("transactionCheckInterval", 30_000, "ms", live=True)
    """Interval between checks of open transactions."""
    transaction_metrics_ms: int = _setting("transactionMetricFlushInterval", 3_000, "ms", live=True)
    """Interval between writes of `transactionMetrics`."""
    transactions_max: int = _setting("transactionsMax", 1_000_000, live=True)
    """Maximum number of open transactions; beyond it transactional messages are refused."""

    # Timed messages.
    timer_enable: bool = _setting("timerWheelEnable", True, live=True)
    """Whether messages with a delivery time of their own are accepted; those that wait are delivered in any case."""
    timer_precision_ms: int = _setting("timerPrecisionMs", 1000, "ms")
    """Unit of delivery times: 1000, 500, 200 or 100; another value counts as the next lower one. A message is delivered
    at the end of the unit that its time lies in. Change it only while no timed message waits."""
    timer_delay_max_s: int = _setting("timerMaxDelaySec", 259_200, "seconds", live=True)
    """How far away the delivery time of a message may be."""
    timer_roll_window: int = _setting("timerRollWindowSlot", 172_800, live=True)
    """Number of units of time after which a message that is still waiting is stored again, so that its file can
    expire."""
    timer_congest_max: int = _setting("timerCongestNumEachSlot", 2_147_483_647, live=True)
    """Number of messages for one unit of time above which more are refused at random; from twice the number on, all."""
    timers_max: int = _setting("timersMax", 10_000_000, live=True)
    """Maximum number of waiting timed messages; beyond it more are refused. Each takes about 10 bytes of memory, and
    some 300 if it is alone in its unit of time."""
    timer_flush_ms: int = _setting("timerFlushIntervalMs", 1_000, "ms", live=True)
    """Interval between writes of `timercheck` and `timermetrics`, as other brokers read them."""
    revive_queue_nums: int = _setting("reviveQueueNum", 8)
    """Number of queues of the topic of what POP consumers have taken and acknowledged. Do not lower it while messages
    are invisible."""
    retry_topic_v2: bool = _setting("enableRetryTopicV2", False, live=True)
    """Whether messages that POP consumers do not acknowledge come back in topics `%RETRY%group+topic` instead of
    `%RETRY%group_topic`, which is ambiguous if a name contains `_`."""
    pops_retry_topic_v1: bool = _setting("retrieveMessageFromPopRetryTopicV1", True, live=True)
    """Whether pops still read the topics of the older form while `enableRetryTopicV2` is set."""
    pop_from_retry_percent: int = _setting("popFromRetryProbability", 20, "percent", live=True)
    """Share of pops that read the retry topic first; the others read it last."""
    priority_ascends: bool = _setting("priorityOrderAsc", True, live=True)
    """Whether the highest queue of a topic with `message.type=PRIORITY` has the highest priority, else the lowest."""
    waiting_pops_max: int = _setting("maxPopPollingSize", 100_000, live=True)
    """Maximum number of pops that wait for messages; further ones are answered at once."""
    waiting_pops_of_queue_max: int = _setting("popPollingSize", 1_024, live=True)
    """The same for one topic, group and queue."""
    default_request_mode: str = _setting("defaultMessageRequestMode", "PULL", live=True)
    """How consumers consume that ask their broker for queues, `PULL` or `POP`, where SET_MESSAGE_REQUEST_MODE has set
    nothing for their topic and group."""
    default_pop_share_queues: int = _setting("defaultPopShareQueueNum", -1, live=True)
    """Number of next members of a group whose queues a member pops too; 0 or less: all queues."""
    assigns_queues: bool = _setting("serverLoadBalancerEnable", True, live=True)
    """Whether this broker assigns queues to members; if not, each gets all queues."""
    recall_enable: bool = _setting("recallMessageEnable", False, live=True)
    """Whether producers may recall timed messages."""

    # Retention.
    reserved_hours: int = _setting("fileReservedTime", 72, "hours", live=True)
    """How long a full file is kept after its last message."""
    delete_when: str = _setting("deleteWhen", "04", live=True)
    """Hours of the day, separated by `;`, at which expired files are deleted."""
    clean_interval_ms: int = _setting("cleanResourceInterval", 10_000, "ms", live=True)
    """Interval between checks for files to delete."""
    disk_used_ratio_max: int = _setting("diskMaxUsedSpaceRatio", 75, "percent", live=True)
    """Disk usage above which expired files are deleted at any hour."""
    disk_force_ratio: float = _setting("diskSpaceCleanForciblyRatio", 0.85, live=True)
    """Disk usage, as a share, above which the oldest files are deleted whatever their age, even those that a slave
    or a pending delayed message still needs; this is logged."""
    disk_full_ratio: float = _setting("diskSpaceWarningLevelRatio", 0.90, live=True)
    """Disk usage, as a share, above which sends are refused with SERVICE_NOT_AVAILABLE until there is room again."""
    clean_force_enable: bool = _setting("cleanFileForciblyEnable", True, live=True)
    """Whether `diskSpaceCleanForciblyRatio` applies."""

    # Integrity.
    scrub_bytes_per_second: int = _setting("scrubBytesPerSecond", 4 * MEBIBYTE, "bytes/s")
    """How much of the commit log is read again and verified per second; 0: none. See docs/internals/storage.md,
    "Scrubbing"."""
    scrub_interval_ms: int = _setting("scrubInterval", 86_400_000, "ms")
    """Time from the start of one pass over the commit log to the start of the next, unless a pass takes longer."""

    # Replication.
    ha_master_address: str = _setting("haMasterAddress", "")
    """For a slave: `host:port` of its master's replication port. Empty: the slave gets it from the name servers."""
    ha_protocol: str = _setting("haProtocol", "auto")
    """Replication protocol of a slave: `tandemq`, `classic` (to a Java master), or `auto`, which asks the master."""
    ha_classic_peers: tuple[str, ...] = _setting("haClassicPeers", ())
    """IP addresses of Java slaves, separated by `;`: each is accepted, and counted as one replica. Slaves from
    other addresses must introduce themselves (docs/decisions/0004-slave-identification.md)."""
    ha_secret_file: str = _setting("haSecretFile", "")
    """File of the shared secrets that TandemQ brokers prove to each other before they replicate; empty: no proof.
    It is read again when it changes. See docs/guides/operations.md, "The secret of replication"."""
    ha_tls_cert_file: str = _setting("haTlsCertFile", "")
    """Certificate of this broker on replication connections, PEM, with the certificates between it and its
    authority; empty: no TLS. See docs/guides/operations.md, "TLS between brokers"."""
    ha_tls_key_file: str = _setting("haTlsKeyFile", "")
    """Private key of `haTlsCertFile`, PEM, without a password, readable by its owner only."""
    ha_tls_ca_file: str = _setting("haTlsCaFile", "")
    """Authorities, PEM, that the other broker's certificate must come from, on both sides. Empty: those of the
    system, and slaves need no certificate."""
    ha_tls_server_name: str = _setting("haTlsServerName", "")
    """Name in the master's certificate. Empty: the host that the slave connects to."""
    ha_heartbeat_ms: int = _setting("haSendHeartbeatInterval", 5_000, "ms")
    """A replication connection sends a heartbeat after this time without writing."""
    ha_housekeeping_ms: int = _setting("haHousekeepingInterval", 20_000, "ms")
    """A replication connection is closed after this time without reading."""
    ha_reconnect_ms: int = _setting("haReconnectInterval", 5_000, "ms")
    """How long a slave waits before it connects again."""
    ha_batch_bytes: int = _setting("haTransferBatchSize", 32 * 1024, "bytes")
    """Maximum size of the log bytes in one transfer frame."""
    ha_lag_bytes_max: int = _setting("haSlaveFallbehindMax", 256 * MEBIBYTE, "bytes", live=True)
    """How far a slave may lag behind and still be waited for; beyond it senders get SLAVE_NOT_AVAILABLE."""
    ha_bytes_per_second: int = _setting("maxHaTransferByteInSecond", 0, "bytes/s", live=True)
    """Rate limit of the transfer to one slave; 0: no limit."""
    slave_timeout_ms: int = _setting("slaveTimeout", 3_000, "ms", live=True)
    """After this time a sender that waits for slaves gets FLUSH_SLAVE_TIMEOUT."""
    in_sync_replicas: int = _setting("inSyncReplicas", 2, live=True)
    """Number of copies that a SYNC_MASTER needs for SEND_OK, its own included. In an `elect` group it applies to
    any master, and members in sync are counted."""
    metadata_sync_ms: int = _setting("metadataSyncInterval", 10_000, "ms")
    """Interval at which a slave copies topics, groups and offsets."""
    accept_loss_ms: int = _setting("acceptLossTimeout", 30_000, "ms")
    """How long an ASYNC_MASTER waits, after a stop that may have lost bytes, for a slave that has them."""
    sync_from_last_file: bool = _setting("syncFromLastFile", False)
    """Whether an empty TandemQ slave copies only the last commit-log file; classic slaves always do."""

    # A group with a registry.
    registry_address: str = _setting("registryAddr", "")
    """Registry that decides the roles of this group: `zookeeper://host:2181,host:2181`, `etcd://host:2379,host:2379`
    (with parameters for TLS and users: docs/internals/failover.md, "etcd"), or, on one machine, `namesrv://host:9876`.
    Empty: the settings decide. See docs/guides/failover.md, "Modes"."""
    registry_session_ms: int = _setting("registrySessionTimeout", 2_000, "ms")
    """Session timeout requested at the registry; after this time without a heartbeat another member may take over. With
    500 ms writes continue within a second of a master's death; ZooKeeper grants two ticks at least, etcd 1 s."""
    takeover_checks: int = _setting("takeoverChecks", 2)
    """Number of consecutive checks of the registry, half a session but at most 1 s apart, in which the active member
    must be missing before another one takes over, 1 to 30; more if the leases need it. The same on all members. See
    docs/internals/failover.md, "The times"."""
    min_in_sync: int = _setting("minInSyncReplicas", 1)
    """In an `elect` group: with fewer members in sync, messages are refused before they are stored."""
    lag_ms_max: int = _setting("haMaxTimeSlaveNotCatchup", 15_000, "ms")
    """In an `elect` group: a slave that has not caught up for longer leaves the in-sync set."""
    unclean_hand_back_ms: int = _setting("uncleanHandBackAfter", 30_000, "ms")
    """In a `slave-consume` group: after this time a master takes reading back from a slave that is gone, with the
    offsets that the slave had copied to the registry, once a second; 0: only after `tandemq ha force-master`."""

    # Consuming.
    long_polling: bool = _setting("longPollingEnable", True, live=True)
    """Whether a pull that finds no message is held until one arrives, for as long as the client allows."""
    short_polling_ms: int = _setting("shortPollingTimeMills", 1_000, "ms", live=True)
    """How long such a pull is held without long polling."""
    property_filter_enable: bool = _setting("enablePropertyFilter", False, live=True)
    """Whether consumers may select messages by SQL92 expressions over their properties."""
    filter_retries: bool = _setting("filterSupportRetry", False, live=True)
    """With `enablePropertyFilter`: whether a group's SQL92 expressions also select what it reads of its retry topic,
    each by the topic that the message came from. Else all of it is delivered."""
    slave_read_enable: bool = _setting("slaveReadEnable", False, live=True)
    """Whether a master sends consumers that are far behind to its slave. In a group with a registry set it on all
    members: each answers only for itself."""
    memory_ratio_max: int = _setting("accessMessageInMemoryMaxRatio", 40, "percent", live=True)
    """A consumer is far behind once more of the log lies between its next message and the end than this share of the
    machine's memory; on a slave, 10 percentage points less."""
    transfer_bytes_max: int = _setting("maxTransferBytesOnMessageInMemory", 256 * 1024, "bytes", live=True)
    """Maximum size of the messages that one pull returns."""
    transfer_messages_max: int = _setting("maxTransferCountOnMessageInMemory", 32, live=True)
    """Maximum number of messages that one pull returns."""
    client_expiry_ms: int = _setting("clientChannelExpiredTimeout", 120_000, "ms")
    """A client without a heartbeat for this time is removed."""
    lock_live_ms: int = _setting("lockMaxLiveTime", 60_000, "ms")
    """How long a queue stays locked for orderly consumption unless the lock is renewed."""
    delay_levels: str = _setting("messageDelayLevel", DELAY_LEVELS)
    """Delays of levels 1 and up, each a number and s, m, h or d."""

    @property
    def replication_port(self) -> int:
        """Port to listen on for slaves; 0: any free one."""
        return self.ha_port or (self.listen_port + 1 if self.listen_port else 0)

    @property
    def checks_users(self) -> bool:
        """Whether requests must be signed by users."""
        return self.authentication_enable or self.acl_enable

    @property
    def checks_rights(self) -> bool:
        """Whether users need policies for what they do."""
        return self.authorization_enable or self.acl_enable

    @property
    def is_open(self) -> bool:
        """Whether any client of another machine may do everything: without access control, beyond the loopback."""
        return not (self.checks_users or ip_address(self.bind_address).is_loopback)

    @property
    def static_role(self) -> str:
        """The role in a group without a registry."""
        if self.broker_id:
            return "SLAVE"
        return self.role if self.role in ("ASYNC_MASTER", "SYNC_MASTER") else "ASYNC_MASTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(MonitoringConfig):
    """Settings of one name server."""

    bind_address: str = _setting("bindAddress", "0.0.0.0")
    """IP address of the interface to listen on. `0.0.0.0` and `::`: all interfaces, IPv4 and IPv6."""
    listen_port: int = _setting("listenPort", 9876)
    """Port for clients and brokers; 0 takes any free one."""
    data_path: str = _setting("kvConfigPath", "namesrv")
    """Directory of `kvConfig.json` and of the registry; one name server at a time uses it."""
    broker_expiry_ms: int = _setting("brokerExpiry", 120_000, "ms", live=True)
    """A broker that has not registered for this time is removed from all routes."""
    order_message_enable: bool = _setting("orderMessageEnable", False, live=True)
    """Whether routes carry the order configuration of a topic."""
    registry_enable: bool = _setting("registryEnable", False)
    """Whether this name server hosts the registry of the broker groups, durable in `kvConfigPath`. See
    docs/internals/failover.md, "The registry in a name server"."""
    authentication_enable: bool = _setting("authenticationEnabled", False, live=True)
    """Whether each request must be signed by a user, and changes by a super user. See docs/reference/access.md, "Name
    servers"."""
    route_authentication: bool = _setting("routeAuthenticationEnabled", True, live=True)
    """Whether `authenticationEnabled` holds for routes of topics, too, which each client asks for."""
    acl_path: str = _setting("aclPath", "")
    """Directory of `plain_acl.yml` and `acl/`, whose accounts are users. Empty: there are none."""
    init_user: str = _setting("initAuthenticationUser", "", secret=True)
    """A super user, `{"username":"…","password":"…"}`."""
    inner_credentials: str = _setting("innerClientAuthenticationCredentials", "", secret=True)
    """The super user as which brokers and proxies sign, `{"accessKey":"…","secretKey":"…"}`."""
    ha_secret_file: str = _setting("haSecretFile", "")
    """File of the shared secrets that sessions at this name server's registry prove, the same as the brokers', which
    are super users by it; empty: no proof. See docs/guides/operations.md, "The secret of replication"."""
    notify_min_id: bool = _setting("notifyMinBrokerIdChanged", False, live=True)
    """Whether the members of a group are notified (905) when the smallest broker id changes, which Java brokers 5.x
    with acting masters need."""
    connections_max: int = _setting("maxConnections", 50_000, live=True)
    """Maximum number of client connections; further ones are closed when accepted."""
    connection_idle_ms: int = _setting("serverChannelMaxIdleTimeMillis", 120_000, "ms", live=True)
    """A connection is closed after this time without a received byte, or with a request that is still incomplete."""
    frame_bytes_max: int = _setting("frameMaxLength", 16 * MEBIBYTE, "bytes")
    """Largest request or response; a longer one closes the connection."""
    unfinished_bytes_max: int = _setting("unfinishedFramesMax", 64 * MEBIBYTE, "bytes")
    """Memory budget for incomplete requests on all connections; beyond it the connections with the oldest large
    ones are closed."""
    untaken_bytes_max: int = _setting("untakenAnswersMax", 128 * MEBIBYTE, "bytes")
    """Memory budget for responses that peers have not read yet, on all connections. Beyond it connections that read
    nothing are closed first, slow readers last."""
    config_black_list: tuple[str, ...] = _setting("configBlackList", NAME_SERVER_BLACK_LIST)
    """Settings that cannot be changed while the name server runs, separated by `;`. By default those that can remove
    brokers from routes, and who may do what."""

    @property
    def is_open(self) -> bool:
        """Whether any client of another machine may do everything: without access control, beyond the loopback."""
        return not (self.authentication_enable or ip_address(self.bind_address).is_loopback)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig(MonitoringConfig):
    """Settings of one proxy for gRPC clients."""

    name_servers: tuple[str, ...] = _setting("namesrvAddr", ())
    """Name servers of the brokers, `host:port`, separated by `;`."""
    bind_address: str = _setting("bindAddress", "0.0.0.0")
    """IP address of the interface to listen on. `0.0.0.0` and `::`: all interfaces, IPv4 and IPv6."""
    listen_port: int = _setting("grpcServerPort", 8081)
    """Port for gRPC clients, with and without TLS; 0 takes any free one."""
    authentication_enable: bool = _setting("authenticationEnabled", False)
    """Whether each call of a client must be signed by a user of the brokers. See docs/reference/access.md."""
    authorization_enable: bool = _setting("authorizationEnabled", False)
    """Whether users that are not super users need policies for what they do; only with `authenticationEnabled`."""
    inner_credentials: str = _setting("innerClientAuthenticationCredentials", "", secret=True)
    """The super user with which this proxy signs its requests to brokers, `{"accessKey":"…","secretKey":"…"}`."""
    ha_secret_file: str = _setting("haSecretFile", "")
    """File of the brokers' secret of replication, which proves the same without such a user."""
    processes: int = _setting("processes", 1)
    """Number of processes that share the port. A client stays with one of them while its connection lasts."""
    invisible_ms_min: int = _setting("minInvisibleTimeMillsForRecv", 10_000, "ms")
    """Shortest time for which received messages are invisible to other consumers."""
    clients_max: int = _setting("clientsMax", 20_000)
    """Maximum number of clients of one process that have sent their settings."""
    connections_max: int = _setting("maxConnections", 50_000)
    """Maximum number of client connections of one process; further ones are closed when accepted."""
    frame_bytes_max: int = _setting("grpcMaxInboundMessageSize", 8 * MEBIBYTE, "bytes")
    """Largest request, with all messages in it. RocketMQ's default is 130 MiB."""
    unfinished_bytes_max: int = _setting("unfinishedFramesMax", 256 * MEBIBYTE, "bytes")
    """Memory budget for open calls, with their headers and incomplete requests, on all connections of one process.
    Beyond it calls of connections with a large share are refused, or the connection with the most is closed."""
    untaken_bytes_max: int = _setting("untakenAnswersMax", 128 * MEBIBYTE, "bytes")
    """Memory budget for responses that clients have not read yet, on all connections of one process. Beyond it
    connections that read nothing are closed first, slow readers last."""


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse the delays of levels 1 and up, like "1s 5s 10m 2h 1d", to milliseconds.

    Raises:
        ConfigError: a part is not a number with a unit, or there is none.
    """
    parts = text.split()
    matches = [_DELAY.match(part) for part in parts]
    for part, match in zip(parts, matches, strict=True):
        if match is None:
            raise ConfigError(f"{part!r} is not a delay", hint="write a number and s, m, h or d, for instance 30s")
    if not matches:
        raise ConfigError("there is no delay level", hint=f"the default is {DELAY_LEVELS!r}")
    return tuple(int(match[1]) * _UNITS[match[2]] for match in matches if match is not None)


def key_of(config: type[TlsConfig], name: str) -> str:
    """Return RocketMQ's name of a field."""
    for item in fields(config):
        if item.name == name:
            key: str = item.metadata["key"]
            return key
    raise AssertionError(f"{config.__name__} has no field {name}")
