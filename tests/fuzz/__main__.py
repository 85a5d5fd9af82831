"""Fuzz the engine under AddressSanitizer and UBSan: `make fuzz-engine`, with seconds=60 or frames=50000000.

Exit code 0: nothing was found. Another one: the engine and the code in Python judge an input differently, or a
sanitizer stopped the process; the output says why.
"""

import argparse
import logging
import os
import subprocess
import sys
import time

from tests.fuzz import sanitized

REPORT_EVERY_S = 10.0


def main() -> int:
    """Build the engine with the sanitizers, and fuzz it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--frames", type=int, default=0, help="number of frames instead of a time")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    options = parser.parse_args()
    path = os.environ.get(sanitized.PATH)
    if path is None:
        module = sanitized.build()
        command = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]]
        return subprocess.run(command, env=sanitized.environment(module), check=False).returncode
    sys.meta_path.insert(0, sanitized.Finder(path))
    return fuzz(options.seconds, options.frames, int(time.time()) if options.seed is None else options.seed)


def fuzz(seconds: float, frames: int, seed: int) -> int:
    """Feed mutated frames for a time, or a number of them."""
    from tandemq.engine import NAME
    from tests.fuzz.fuzzer import Different, Fuzzer

    logging.disable(logging.CRITICAL)
    engine = sys.modules[sanitized.MODULE]
    assert NAME == engine.NAME == "compiled"
    fuzzer = Fuzzer(engine, seed)
    counts = fuzzer.counts
    began = reported = time.monotonic()
    print(f"seed {seed}")
    try:
        while counts.frames < frames if frames else time.monotonic() - began < seconds:
            fuzzer.run_round()
            if time.monotonic() - reported >= REPORT_EVERY_S:
                reported = time.monotonic()
                print(f"{counts.frames:,} frames", flush=True)
    except Different as different:
        print(f"seed {seed}, after {counts.frames:,} frames: {different}")
        return 1
    print(
        f"{counts.frames:,} frames in {time.monotonic() - began:,.0f} s, {counts.taken:,} with sends that the engine "
        f"took ({counts.messages:,} messages), {counts.compared:,} compared through two brokers, {counts.pieces:,} "
        f"pieces of logs, {counts.pulls:,} pulls answered; no difference"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
