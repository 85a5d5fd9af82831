"""Benchmarks: every figure the project states, beside Java RocketMQ, in one run with one load generator.

    run.py        entry point of `make bench`: choice of cells and servers, progress, results
    cells.py      the cells: quantity, unit, target, choice
    matrix.py     the product of forms, lengths, layouts and shapes; the loads of its cells
    sessions.py   measurement of each group of cells on one server: sending.py, reading.py, live.py, clients.py,
                  processes.py; what they get: setting.py
    servers.py    brokers under test as processes: ours, RocketMQ 4.9.7, RocketMQ 5.3.3
    clocks.py     CPU time beside a load
    copying.py    a slave that copies its master's log
    nats.py       NATS JetStream, for scale, with a generator of its own (nats_load.py)
    loads.py      the generator in a process of its own: tandemq.load, latency_load.py or idle_load.py
    probe.py      whether a broker is up, how much it holds; records.py: fields of a record
    generator.py  limits of the generator itself
    double_write.py  a SYNC_MASTER pair beside an ASYNC_MASTER pair
    failover.py   kill -9 of a master under a consumer (failover_consumer.py)
    estimate.py   how long a run takes
    report.py     the table; latest.json and latest.md
    plot.py       the picture for the README

inside.py and pulls.py measure a broker's turns without sockets.

One server runs at a time (a pair where the cell is about pairs). The servers take turns group by group, so that a slow
quarter of an hour affects all of them. Stores are deleted after each group.
"""
