"""What a worker process of Spark's keeps from task to task.

Source: docs/guides/pipeline.md, "Figures".
"""

import gc
from functools import cache


@cache
def keep_modules() -> None:
    """Take what the process has imported out of the search for garbage. To be called when a task has done its work, and
    so has imported what tasks need; in a process that has done so before, it does nothing. (`gc` knows too, but
    to ask it takes 13 ms.)

    Spark searches a worker for garbage after each task. The modules of pyspark, Arrow and pandas never become garbage,
    and to look through them takes 75 ms: as long as half of reading a range of the log.
    """
    gc.freeze()
