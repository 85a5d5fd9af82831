"""The client: producers and consumers for this protocol's brokers, TandemQ's and Java's.

    blocking                    BlockingProducer, BlockingConsumer: the asyncio client in a thread
    aio/                        Producer, PushConsumer, PullConsumer, Admin; sockets, clock, futures
    --------------------------- no asyncio and no time below this line
    node                        one client as a `boundary.Node`: builds the parts, runs a turn
    admin/                      operations on clusters, topics, groups, offsets and messages
    consumer/                   push and pull consumer, rebalancing, one queue's pulls, offsets
    producer/                   producer, choice of queue and broker, encoding
    core/                       connections, routes, broker availability, operations, timers, settings

Everything below the line is deterministic, so that the simulator runs whole clients as the same objects: it creates a
`ClientNode`, hosts producers and consumers on it, calls their operations with the time, and drives `turn`. Operations
return tickets; those of several requests are generators ("stories") that say what they wait for and are run by
`steps.OperationRunner`.

What holds together: a message keeps its unique key through retries; offsets are told only for what was acknowledged,
and never beyond; a peer is dead when it is silent; an outcome nobody knows is an error of its own (OutcomeUnknown).
"""
