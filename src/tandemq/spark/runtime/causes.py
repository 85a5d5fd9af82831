"""Cause of a failed query, found in Spark's error text: one line, without stack traces of the JVM.

Source: docs/guides/pipeline.md, "Jobs"; docs/guides/pipeline-clusters.md, "Python of the workers".
"""

import re

from tandemq import errors
from tandemq.errors import ConfigError, LocalError, TandemError

_OURS = re.compile(r"(?:^|: )tandemq\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .+$", re.MULTILINE)
_CALL = "An error occurred while calling"
NOT_STARTED = "JAVA_GATEWAY_EXITED"
STOPPED = "stopped SparkContext"
JVM_ENDED = "does not exist in the JVM"
"""What py4j says of any class when the JVM has ended while it looked the class up."""
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE = re.compile(r"No module named '((?:tandemq|msgspec|isal|numpy|pyarrow|pandas|pyspark)[\w.]*)'")
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]*\d)")
_NO_FORMAT = re.compile(r"DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (rocketmq[\w-]*)")
SET_PYTHON = "set PYSPARK_PYTHON to a Python that every machine of the cluster has, with tandemq[spark] installed"


def parse_error(text: str) -> TandemError:
    """Return the error described by an error text of Spark: the last one named in it is the cause."""
    ours = _OURS.findall(text)
    if ours:
        name, what = ours[-1]
        kind = getattr(errors, name, None)
        return kind(what) if isinstance(kind, type) and issubclass(kind, TandemError) else LocalError(what)
    if NOT_STARTED in text:
        return LocalError("Spark's JVM did not start", hint="see its output above, and check --master and --conf")
    python = _python_error(text)
    if python is not None:
        return python
    if STOPPED in text:
        return LocalError("Spark was stopped", hint="is the cluster named by --master up? See the reason above")
    if JVM_ENDED in text:
        return LocalError("Spark's JVM has ended")
    pythons = _PYTHONS.findall(text)
    return LocalError(f"Spark: {pythons[-1] if pythons else _first_line(text)}")


def _python_error(text: str) -> ConfigError | None:
    """Return the error if the workers' Python cannot run our code: the settings of the session are wrong."""
    if found := _NO_PYTHON.search(text):
        return ConfigError(f"Spark cannot start the Python {found[1]}", hint=SET_PYTHON)
    if found := _NO_MODULE.search(text):
        return ConfigError(f"the Python of Spark's workers has no module {found[1]}", hint=SET_PYTHON)
    if found := _OTHER_PYTHON.search(text):
        return ConfigError(
            f"Spark's workers run Python {found[1]}, the driver {found[2]}",
            hint=f"set PYSPARK_PYTHON to one of {found[2]} on every machine",
        )
    if found := _NO_FORMAT.search(text):
        return ConfigError(
            f"Spark does not know the format {found[1]}",
            hint="call tandemq.spark.register(spark), or set PYSPARK_PYTHON to a Python with tandemq[spark]",
        )
    return None


def _first_line(text: str) -> str:
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(_CALL)), "no reason given")
