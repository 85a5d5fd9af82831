"""The command line: a thin skin over the client, the processes and the offline tools.

Exit codes: 0 done · 1 it did not work (the text says why) · 2 wrong usage or configuration · 3 a check found faults
"""

from tandemq.cli.main import main

__all__ = ["main"]
