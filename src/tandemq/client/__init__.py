"""The client: producers, consumers and administration for TandemQ and RocketMQ brokers.

    blocking                    BlockingProducer, BlockingConsumer: the asyncio client in a thread (aio/loop_thread)
    connection                  one blocking connection, for tools: commands, measurements, tests
    aio/                        Producer, PushConsumer, PopConsumer, PullConsumer, Admin; sockets, clock, futures
    --------------------------- no asyncio and no time below this line
    node                        one client as a `boundary.Node`: builds the parts, runs a turn
    admin/                      operations on clusters, topics, groups, offsets and messages
    consumer/                   push, pop and pull consumer, rebalancing, one queue's pulls, offsets
    producer/                   producer, choice of queue and broker, encoding
    core/                       connections, routes, broker availability, operations, timers, settings

Everything below the line is deterministic: the simulator runs whole clients as the same objects. It creates a
`ClientNode`, hosts producers and consumers on it, calls their operations with the current time, and drives `turn`.
Operations return tickets; those of several requests are generators that yield what they wait for, run by
`core.operations.OperationRunner`.

Invariants: a message keeps its unique key through retries; offsets are committed only up to what was acknowledged; a
peer is taken for dead because of its silence; an unknown outcome is an error of its own (OutcomeUnknown).
"""
