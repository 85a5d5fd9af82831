"""`python -m tests.chaos.planted_runs DEFECT …`: `chaos.run` with brokers and proxies that have a defect.

It has to find the defect: exit code 3. See `tests.chaos.planted` for the defects; the other words are those of
`chaos.run`.
"""

import sys

from chaos import brokers
from chaos.processes import GrpcProxy
from chaos.run import main
from tests.chaos.planted import OF_PROXIES

if __name__ == "__main__":
    defect = sys.argv.pop(1)
    program = ("-m", "tests.chaos.planted", defect)
    if defect in OF_PROXIES:
        GrpcProxy.program = program
    else:
        brokers.PROGRAM = program
    sys.exit(main())
