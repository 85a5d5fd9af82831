"""`python -m tandemq.sim SEED …`: run seeds with all their logging."""

import logging
import sys

from tandemq.sim.simulation import run_seed


def main() -> int:
    """Run the seeds named; 1 if one failed."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    failed = 0
    for text in sys.argv[1:]:
        result = run_seed(int(text))
        failed |= bool(result.rule)
        sys.stdout.write(f"seed {result.seed}: {result.rule or 'fine'} {result.text} digest {result.digest}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
