"""Topics for unmodified Kafka consumers, read-only: a process of its own in front of the brokers.

    Kafka consumer ─► server ─► requests ─► front ─► partitions ─► cluster ─► pulls of the brokers
    Kafka consumer ◄─ server ◄─ responses ◄─ batches ◄──────────────────────── messages

| Kafka | here |
|---|---|
| partition | a queue of a broker group, numbered by `partitions` |
| offset | the queue offset |
| key, value, headers | keys, body, properties of applications |
| timestamp | when the producer sent the message; searched by the time of storage |
| the only broker, leader of everything | this process |

Nothing is stored but the numbers of partitions: the log is the brokers'. There are no consumer groups: consumers
assign partitions themselves, as Spark's source does.

Source: docs/decisions/0024-kafka-read-front.md; the protocol guide and message schemas of Apache Kafka.
"""
