"""State that a Python worker process of Spark keeps from task to task, and the end of the one that plans a stream.

Source: docs/guides/pipeline.md, "Figures"; PySpark's python_streaming_source_runner.
"""

import gc
import logging
import os
import sys
from functools import cache


@cache
def freeze_modules() -> None:
    """Exclude imported modules from garbage collection. Called at the end of a task, when all imports are done; further
    calls in the same process do nothing. (`gc.get_freeze_count` could tell that too, but takes 13 ms.)

    Spark runs the garbage collector in a worker after each task. The modules of pyspark, Arrow and pandas never become
    garbage, and scanning them takes 75 ms: half the time of reading a range of the log.
    """
    gc.freeze()


def end_planner() -> None:
    """End the process that plans a stream once Spark has closed the connection to it, because the query has ended; do
    nothing otherwise. Called as the `stop` of a reader, while the error of that connection is handled.

    PySpark takes that end for an error and reports it through the closed connection: the terminal of a driver whose
    query succeeded would show the stack traces of both errors.
    """
    if isinstance(sys.exception(), EOFError | ConnectionError):
        logging.shutdown()
        os._exit(0)
