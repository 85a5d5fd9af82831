"""The Grafana dashboards, which `tools.dashboards` writes: boards of rows of panels, and their PromQL expressions."""

from typing import NamedTuple

BY_GROUP = '{cluster="$cluster", broker=~"$broker"}'
BY_NODE = '{cluster="$cluster", node_id=~"$broker"}'
CONSUMERS = '{cluster="$cluster", consumer_group=~"$group", topic=~"$topic", is_system="false"}'
IN_GROUP = '{cluster="$cluster", consumer_group=~"$group"}'
IN_TOPIC = '{cluster="$cluster", topic=~"$topic"}'


class Query(NamedTuple):
    """An expression of a panel. `legend` may contain labels: "{{topic}}"."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel. `unit`: Grafana's name of it; `limit`: values from it on are red."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    """timeseries, stat or state-timeline."""
    width: int = 8
    limit: float | None = None
    help: str = ""


class Board(NamedTuple):
    """A dashboard: file name, title, variables that users select, and titled rows of panels."""

    name: str
    title: str
    variables: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def by(labels: str, expr: str) -> str:
    """Return the sum of an expression by labels."""
    return f"sum by ({labels}) ({expr})"


def rate(metric: str, labels: str) -> str:
    """Return the rate of a counter per second."""
    return f"rate({metric}{labels}[$__rate_interval])"


def quantile(share: float, metric: str, labels: str, keep: str) -> str:
    """Return a quantile of a histogram by the labels `keep`."""
    return f"histogram_quantile({share}, {by(f'{keep}, le', rate(f'{metric}_bucket', labels))})"


def stat(title: str, unit: str, expr: str, *, limit: float | None = None, width: int = 4, text: str = "") -> Panel:
    """Return a panel with one number."""
    return Panel(title, unit, (Query(expr),), "stat", width, limit, text)


IS_MASTER = f"tandemq_broker_master{BY_GROUP} == 1"
QUEUEING = f"rocketmq_consumer_queueing_latency_milliseconds{CONSUMERS}"
DEAD = f"increase(rocketmq_send_to_dlq_messages_total{IN_GROUP}[$__rate_interval])"
BY_LANGUAGE = f"sum by (consumer_group, language, instance) (rocketmq_consumer_connections{IN_GROUP})"
MEMBER = "{{broker}}/{{broker_id}}"
QUEUE = "{{consumer_group}} {{topic}}"
OVERVIEW = Board(
    "overview",
    "TandemQ / Overview",
    ("cluster", "broker"),
    (
        (
            "Now",
            (
                stat(
                    "Groups with a master",
                    "none",
                    f"count(max by (broker) (tandemq_broker_master{BY_GROUP}) == 1) or vector(0)",
                ),
                stat("Processes down", "none", 'count(up{job="tandemq"} == 0) or vector(0)', limit=1),
                stat("Messages in", "mps", f"sum({rate('rocketmq_messages_in_total', BY_NODE)})"),
                stat("Messages out", "mps", f"sum({rate('rocketmq_messages_out_total', BY_NODE)})"),
                stat("Consumer lag", "short", f"sum(rocketmq_consumer_lag_messages{BY_NODE})"),
                stat("Damaged ranges", "none", f"sum(tandemq_damaged_ranges{BY_GROUP})", limit=1),
            ),
        ),
        (
            "Traffic",
            (
                Panel(
                    "Messages per second",
                    "mps",
                    (
                        Query(by("node_id", rate("rocketmq_messages_in_total", BY_NODE)), "{{node_id}} in"),
                        Query(by("node_id", rate("rocketmq_messages_out_total", BY_NODE)), "{{node_id}} out"),
                    ),
                ),
                Panel(
                    "Bytes per second",
                    "Bps",
                    (
                        Query(by("node_id", rate("rocketmq_throughput_in_total", BY_NODE)), "{{node_id}} in"),
                        Query(by("node_id", rate("rocketmq_throughput_out_total", BY_NODE)), "{{node_id}} out"),
                    ),
                ),
                Panel(
                    "Time from a send to its response",
                    "s",
                    tuple(
                        Query(
                            quantile(share, "tandemq_send_wait_seconds", BY_GROUP, "broker"), f"{{{{broker}}}} {name}"
                        )
                        for share, name in ((0.5, "p50"), (0.99, "p99"))
                    ),
                ),
                Panel(
                    "Topics with most messages in",
                    "mps",
                    (
                        Query(
                            f"topk(10, {by('topic', rate('rocketmq_messages_in_total', BY_NODE))})",
                            "{{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Groups with most lag",
                    "short",
                    (
                        Query(
                            f"topk(10, {by('consumer_group', f'rocketmq_consumer_lag_messages{BY_NODE}')})",
                            "{{consumer_group}}",
                        ),
                    ),
                ),
                Panel(
                    "Connected clients",
                    "none",
                    (
                        Query(
                            f"max by (node_id) (sum by (node_id, instance) (rocketmq_producer_connections{BY_NODE}))",
                            "{{node_id}} producers",
                        ),
                        Query(
                            f"max by (node_id) (sum by (node_id, instance) (rocketmq_consumer_connections{BY_NODE}))",
                            "{{node_id}} consumers",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
GROUPS = Board(
    "groups",
    "TandemQ / Broker groups and failover",
    ("cluster", "broker"),
    (
        (
            "Roles",
            (
                Panel(
                    "Active master", "none", (Query(f"tandemq_broker_master{BY_GROUP}", MEMBER),), "state-timeline", 12
                ),
                Panel(
                    "Role, or stage of a role change",
                    "none",
                    (Query(f"tandemq_broker_role{BY_GROUP} == 1", f"{MEMBER} {{{{role}}}}"),),
                    "state-timeline",
                    12,
                ),
                Panel(
                    "Members in sync",
                    "none",
                    (
                        Query(
                            f"tandemq_group_in_sync_members{BY_GROUP} and on (broker, broker_id) {IS_MASTER}",
                            "{{broker}} in sync",
                        ),
                        Query(f"max by (broker) (tandemq_group_in_sync_members_min{BY_GROUP})", "{{broker}} needed"),
                    ),
                ),
                Panel(
                    "Epoch",
                    "none",
                    (Query(f"tandemq_group_epoch{BY_GROUP}", MEMBER),),
                    help="Grows with each election.",
                ),
                Panel(
                    "Elections and role changes",
                    "none",
                    (
                        Query(f"increase(tandemq_elections_total{BY_GROUP}[5m])", f"{MEMBER} elected"),
                        Query(f"increase(tandemq_role_changes_total{BY_GROUP}[5m])", f"{MEMBER} changed"),
                    ),
                ),
                Panel(
                    "Registry reachable", "none", (Query(f"tandemq_registry_up{BY_GROUP}", MEMBER),), "state-timeline"
                ),
                Panel("Lease left", "s", (Query(f"tandemq_lease_remaining_seconds{BY_GROUP}", MEMBER),)),
                Panel(
                    "Reads and writes permitted",
                    "none",
                    (
                        Query(f"tandemq_may_read{BY_GROUP}", f"{MEMBER} read"),
                        Query(f"tandemq_may_write{BY_GROUP}", f"{MEMBER} write"),
                    ),
                    "state-timeline",
                ),
            ),
        ),
        (
            "Replication",
            (
                Panel(
                    "Lag of slaves",
                    "bytes",
                    (Query(f"tandemq_replication_lag_bytes{BY_GROUP}", "{{broker}} to {{peer}}"),),
                ),
                Panel(
                    "Lag of slaves in time",
                    "s",
                    (Query(f"tandemq_replication_lag_seconds{BY_GROUP}", "{{broker}} to {{peer}}"),),
                ),
                Panel(
                    "Replication connections",
                    "none",
                    (Query(f"tandemq_replication_connected{BY_GROUP}", f"{MEMBER} with {{{{peer}}}}"),),
                    "state-timeline",
                ),
                Panel("Log written", "Bps", (Query(f"deriv(tandemq_store_end_offset{BY_GROUP}[1m])", MEMBER),)),
                Panel(
                    "Time since the last bytes of the peer",
                    "s",
                    (Query(f"tandemq_replication_last_read_seconds{BY_GROUP}", f"{MEMBER} from {{{{peer}}}}"),),
                ),
                Panel(
                    "Connections refused",
                    "none",
                    (Query(f"increase(tandemq_replication_refused_total{BY_GROUP}[5m])", MEMBER),),
                    limit=1,
                ),
            ),
        ),
    ),
)
CONSUMER_BOARD = Board(
    "consumers",
    "TandemQ / Topics and consumer groups",
    ("cluster", "group", "topic"),
    (
        (
            "Lag",
            (
                Panel(
                    "Messages not committed",
                    "short",
                    (Query(by("consumer_group, topic", f"rocketmq_consumer_lag_messages{CONSUMERS}"), QUEUE),),
                ),
                Panel(
                    "Age of the oldest message not committed",
                    "ms",
                    (
                        Query(
                            f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds{CONSUMERS})",
                            QUEUE,
                        ),
                    ),
                ),
                Panel(
                    "Age of the oldest message not pulled",
                    "ms",
                    (
                        Query(
                            f"max by (consumer_group, topic) ({QUEUEING})",
                            QUEUE,
                        ),
                    ),
                ),
                Panel(
                    "Messages in flight",
                    "short",
                    (Query(by("consumer_group, topic", f"rocketmq_consumer_inflight_messages{CONSUMERS}"), QUEUE),),
                ),
                Panel(
                    "Messages not pulled",
                    "short",
                    (Query(by("consumer_group, topic", f"rocketmq_consumer_ready_messages{CONSUMERS}"), QUEUE),),
                ),
                Panel(
                    "Dead letters",
                    "short",
                    (
                        Query(
                            f"sum by (consumer_group) ({DEAD}) or vector(0)",
                            "{{consumer_group}}",
                        ),
                    ),
                    limit=1,
                ),
            ),
        ),
        (
            "Traffic",
            (
                Panel(
                    "Messages out",
                    "mps",
                    (Query(by("consumer_group, topic", rate("rocketmq_messages_out_total", CONSUMERS)), QUEUE),),
                ),
                Panel(
                    "Bytes out",
                    "Bps",
                    (Query(by("consumer_group, topic", rate("rocketmq_throughput_out_total", CONSUMERS)), QUEUE),),
                ),
                Panel(
                    "Messages in",
                    "mps",
                    (
                        Query(
                            by(
                                "topic, message_type",
                                rate("rocketmq_messages_in_total", IN_TOPIC),
                            ),
                            "{{topic}} {{message_type}}",
                        ),
                    ),
                ),
                Panel(
                    "Size of messages, p99",
                    "bytes",
                    (
                        Query(
                            quantile(0.99, "rocketmq_message_size", IN_TOPIC, "topic"),
                            "{{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Consumers by language",
                    "none",
                    (
                        Query(
                            f"max by (consumer_group, language) ({BY_LANGUAGE})",
                            "{{consumer_group}} {{language}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
BROKERS = Board(
    "brokers",
    "TandemQ / Brokers and name servers",
    ("cluster", "broker"),
    (
        (
            "Store",
            (
                Panel("Disk used", "percentunit", (Query(f"tandemq_disk_used_ratio{BY_GROUP}", MEMBER),), limit=0.85),
                Panel(
                    "Writes to the log, p99",
                    "s",
                    (Query(quantile(0.99, "tandemq_store_commit_seconds", BY_GROUP, "broker, broker_id"), MEMBER),),
                ),
                Panel(
                    "Syncs of the log, p99",
                    "s",
                    (Query(quantile(0.99, "tandemq_store_sync_seconds", BY_GROUP, "broker, broker_id"), MEMBER),),
                ),
                Panel(
                    "Log kept",
                    "bytes",
                    (Query(f"tandemq_store_end_offset{BY_GROUP} - tandemq_store_start_offset{BY_GROUP}", MEMBER),),
                ),
                Panel(
                    "Written, not synced",
                    "bytes",
                    (Query(f"tandemq_store_end_offset{BY_GROUP} - tandemq_store_flushed_offset{BY_GROUP}", MEMBER),),
                ),
                Panel(
                    "Damaged ranges, failed writes",
                    "none",
                    (
                        Query(f"tandemq_damaged_ranges{BY_GROUP}", f"{MEMBER} {{{{state}}}}"),
                        Query(f"tandemq_store_write_failures{BY_GROUP}", f"{MEMBER} failed writes"),
                    ),
                    limit=1,
                ),
                Panel(
                    "Verified share of the log",
                    "percentunit",
                    (Query(f"tandemq_scrub_position_ratio{BY_GROUP}", MEMBER),),
                ),
            ),
        ),
        (
            "Event loop",
            (
                Panel(
                    "Busy share of a core",
                    "percentunit",
                    (Query("rate(tandemq_loop_busy_seconds_total[$__rate_interval])", "{{instance}}"),),
                    limit=0.9,
                ),
                Panel(
                    "Turns, p99",
                    "s",
                    (Query(quantile(0.99, "tandemq_loop_turn_seconds", "", "instance"), "{{instance}}"),),
                    limit=0.05,
                ),
                Panel(
                    "Delay of periodic tasks", "s", (Query(f"tandemq_loop_late_seconds{BY_GROUP}", MEMBER),), limit=0.5
                ),
                Panel(
                    "Requests",
                    "reqps",
                    (
                        Query(
                            by("node_id, request_code", rate("rocketmq_rpc_latency_milliseconds_count", BY_NODE)),
                            "{{node_id}} {{request_code}}",
                        ),
                    ),
                ),
                Panel(
                    "Requests refused or failed",
                    "reqps",
                    (
                        Query(
                            by(
                                "node_id, request_code, response_code",
                                rate(
                                    "rocketmq_rpc_latency_milliseconds_count",
                                    '{cluster="$cluster", node_id=~"$broker", response_code!~"success|pull_.*"}',
                                ),
                            )
                            + " or vector(0)",
                            "{{request_code}} {{response_code}}",
                        ),
                    ),
                ),
                Panel("Connections", "none", (Query("tandemq_connections", "{{instance}}"),)),
            ),
        ),
        (
            "Processes",
            (
                Panel(
                    "Processor",
                    "percentunit",
                    (Query('rate(process_cpu_seconds_total{job="tandemq"}[$__rate_interval])', "{{instance}}"),),
                ),
                Panel(
                    "Resident memory", "bytes", (Query('process_resident_memory_bytes{job="tandemq"}', "{{instance}}"),)
                ),
                Panel(
                    "Open file descriptors",
                    "percentunit",
                    (Query('process_open_fds{job="tandemq"} / process_max_fds{job="tandemq"}', "{{instance}}"),),
                    limit=0.8,
                ),
                Panel("Series", "none", (Query("tandemq_metrics_series", "{{instance}}"),)),
                Panel(
                    "Time until certificates expire",
                    "s",
                    (Query("tandemq_tls_certificate_expiry_timestamp_seconds - time()", "{{instance}} {{setting}}"),),
                ),
                Panel(
                    "Cost of metrics, share of a core",
                    "percentunit",
                    (Query("rate(tandemq_metrics_collect_seconds_sum[$__rate_interval])", "{{instance}}"),),
                    limit=0.01,
                ),
                Panel(
                    "Brokers and topics at name servers",
                    "none",
                    (
                        Query("sum by (instance) (tandemq_namesrv_brokers)", "{{instance}} brokers"),
                        Query("tandemq_namesrv_topics", "{{instance}} topics"),
                    ),
                ),
            ),
        ),
    ),
)
BOARDS = (OVERVIEW, GROUPS, CONSUMER_BOARD, BROKERS)
