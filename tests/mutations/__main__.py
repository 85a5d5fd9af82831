"""Run simulated seeds with one safety switched off, until a rule notices.

python -m tests.mutations list                      name all mutations
python -m tests.mutations NAME                      run seeds from 1 on, at most 60
python -m tests.mutations NAME --first 7 --seeds 1  run seed 7 alone; seeds of groups count from 1 too

Exit code 0: a rule that may notice the mutation was violated. 1: no seed failed, or another rule was violated.
"""

import argparse
import sys

from lab.sim.runner import run_one
from lab.sim.simulation import quiet
from lab.sim.world.plan import GROUP_SEEDS
from tests.mutations.cluster import MUTATIONS
from tests.mutations.groups import GROUP_MUTATIONS

SEEDS_DEFAULT = 60


def main() -> int:
    """Run the command line; return its exit code."""
    every = MUTATIONS | GROUP_MUTATIONS
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="Run seeds with a safety off.")
    parser.add_argument("name", choices=["list", *every], metavar="NAME", help="a mutation, or list")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_DEFAULT, help="the maximum number of seeds")
    asked = parser.parse_args()
    if asked.name == "list":
        for name, mutation in every.items():
            print(f"{name:28}{(mutation.patch.__doc__ or '').splitlines()[0]}")
        return 0
    patch, rules = every[asked.name]
    base = GROUP_SEEDS if asked.name in GROUP_MUTATIONS else 0
    for seed in range(base + asked.first, base + asked.first + asked.seeds):
        with quiet(), patch():
            result = run_one(seed)
        if result.rule:
            print(f"seed {seed}: {result.rule} {result.text}")
            return 0 if result.rule in rules else 1
    print(f"{asked.name}: not noticed by {asked.seeds} seeds")
    return 1


if __name__ == "__main__":
    sys.exit(main())
