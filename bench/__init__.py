"""The benchmarks: every figure the project promises, beside Java RocketMQ, in one run with one load generator.

    run.py        what `make bench` calls: which cells, which servers, progress, results
    cells.py      the cells: what is measured, in which unit, against which target
    sessions.py   how each group of cells is measured on one server
    servers.py    brokers under test as processes: ours, RocketMQ 4.9.7, RocketMQ 5.3.3
    loads.py      the generator (tandemq.load) as a process of its own
    generator.py  what the generator can do by itself
    failover.py   kill -9 of a master under a consumer (failover_consumer.py)
    report.py     the table, latest.json
    plot.py       the picture for the README

One server runs at a time (a pair where the cell is about pairs), the servers take turns cell group by cell group, so
that a slow quarter of an hour hits all of them. Stores are deleted after each group.
"""
