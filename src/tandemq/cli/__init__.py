"""The command line: a thin skin over the client, the processes and the offline tools.

    main                                    the root, errors and exit codes
    serve up demo sim                       what runs
    topic group message offset cluster ha   what asks and tells a running cluster
    log                                     what reads a store directory
    bench                                   what puts load on a broker
    show ask                                tables or JSON; the client for the length of one command

Exit codes: 0 done · 1 it did not work (the text says why) · 2 wrong usage or configuration · 3 a check found faults
"""

from tandemq.cli.main import main

__all__ = ["main"]
