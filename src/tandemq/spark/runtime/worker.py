"""State that a Python worker process of Spark keeps from task to task.

Source: docs/guides/pipeline.md, "Figures".
"""

import gc
from functools import cache


@cache
def freeze_modules() -> None:
    """Exclude imported modules from garbage collection. Called at the end of a task, when all imports are done; further
    calls in the same process do nothing. (`gc.get_freeze_count` could tell that too, but takes 13 ms.)

    Spark runs the garbage collector in a worker after each task. The modules of pyspark, Arrow and pandas never become
    garbage, and scanning them takes 75 ms: half the time of reading a range of the log.
    """
    gc.freeze()
