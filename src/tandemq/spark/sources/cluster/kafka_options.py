"""Options of Spark's Kafka source and sink that have no counterpart here: each is refused with a hint.

The options that do have one are in `options`, under the same names; docs/guides/pipeline-kafka-options.md lists them.

Source: Spark's "Structured Streaming + Kafka Integration Guide"; its KafkaSourceProvider for the parameters it refuses.
"""

from tandemq.errors import ConfigError

_TLS_FILES = "give tls=true with tlsCaFile, tlsCertFile and tlsKeyFile, PEM files on every node"
_BYTES = "key and body are bytes as they were sent; convert them with cast or from_json"
_NO_GROUP = "leave it out: pulls belong to no group; groupIdPrefix names one, commitGroup sets a group's offsets"
_TIMEOUT = "leave it out; timeoutMs limits how long a cluster that does not answer is tried"

REFUSED: dict[str, tuple[str, str]] = {
    "kafka.bootstrap.servers": ("it names Kafka's brokers", "give nameServer: host:port;host:port of name servers"),
    "kafka.group.id": ("a source in Spark joins no consumer group", _NO_GROUP),
    "kafka.auto.offset.reset": ("the source keeps its own offsets", "give startingOffsets"),
    "kafka.enable.auto.commit": ("the source keeps its own offsets", "give commitGroup"),
    "kafka.key.deserializer": ("columns have fixed types", _BYTES),
    "kafka.value.deserializer": ("columns have fixed types", _BYTES),
    "kafka.key.serializer": ("columns have fixed types", _BYTES),
    "kafka.value.serializer": ("columns have fixed types", _BYTES),
    "kafka.interceptor.classes": ("it names Java classes", "leave it out"),
    "kafka.isolation.level": (
        "half messages of transactions are in a topic of their own",
        "leave it out: only committed messages are in the topic",
    ),
    "kafka.security.protocol": ("it chooses Kafka's listeners", "give tls=true for TLS; there is no SASL"),
    "kafka.acks": (
        "flush and replication are configured at brokers",
        "leave it out; requireSendOk says whether a message without them fails",
    ),
    "kafkaConsumer.pollTimeoutMs": ("Kafka's consumer is not used", _TIMEOUT),
    "fetchOffset.numRetries": ("requests are repeated until a time, not by number", _TIMEOUT),
    "fetchOffset.retryIntervalMs": ("requests are repeated until a time, not by number", _TIMEOUT),
}
"""Reason and hint by option."""

REFUSED_PREFIXES: dict[str, tuple[str, str]] = {
    "kafka.ssl.": ("it names Java key stores", _TLS_FILES),
    "kafka.sasl.": ("there is no SASL", "give secretFile, with name and key of a user"),
    "kafka.": ("it is a parameter of Kafka's client", "leave it out; this source uses RocketMQ's protocol"),
}
"""The same by prefix; the first one that matches counts."""

_BY_LOWER = {name.lower(): name for name in REFUSED}


def check_refused(name: str) -> None:
    """Refuse an option of Kafka's connector that has no counterpart.

    Args:
        name: as given; case does not matter.
    Raises:
        ConfigError: it has none; with the reason and the replacement.
    """
    lower = name.lower()
    found = REFUSED.get(_BY_LOWER.get(lower, "")) or next(
        (what for prefix, what in REFUSED_PREFIXES.items() if lower.startswith(prefix)), None
    )
    if found is not None:
        reason, hint = found
        raise ConfigError(f"{_BY_LOWER.get(lower, name)}: {reason}", hint=hint)
