"""The client: producers and consumers for this protocol's brokers, TandemQ's and Java's.

    faces (asyncio, blocking)   Producer  PushConsumer  PullConsumer  Admin      producer push pull admin blocking
    shell                       sockets, clock, futures                          shell
    ------------------------------------------------- no asyncio and no time below this line
    node                        one client; a boundary.Node                      node
    machines                    ProducerCore PushCore PullCore                   sending consuming pulling
                                shares, locks, one queue's pull, its window      shares locks fetch window
                                routes, broker choice, allocation, retries       routes latency balance retrying
    links and stories           one link per address; requests matched           links steps calls

Everything below the line is deterministic, so that the simulator runs whole clients as the same objects: it creates a
`ClientNode`, hosts producers and consumers on it, calls their operations with the time, and drives `turn`. Operations
return tickets; those of several requests are generators ("stories") that say what they wait for and are run by
`steps.Runner`.

What holds together: a message keeps its unique key through retries; offsets are told only for what was acknowledged,
and never beyond; a peer is dead when it is silent; an outcome nobody knows is an error of its own (OutcomeUnknown).
"""
