"""What Spark raises, as one of our errors: the line that says what is wrong, without the way it took through the JVM.

Source: docs/guides/pipeline.md, "Jobs".
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tandemq import errors
from tandemq.errors import LocalError, TandemError

_OURS = re.compile(r"^tandemq\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .+$", re.MULTILINE)
_CALL = "An error occurred while calling"
NOT_STARTED = "JAVA_GATEWAY_EXITED"
STOPPED = "stopped SparkContext"


@contextmanager
def translated() -> Iterator[None]:
    """What Spark or the lake's library raise within becomes one of our errors.

    Raises:
        TandemError: our own one, where it was raised in another process of Spark's; else a LocalError.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise told_by(str(error)) from error
    except DeltaError as error:
        raise LocalError(f"the lake: {_first_line(str(error))}") from error


def told_by(text: str) -> TandemError:
    """The error that a text of Spark's tells of: the last one in it, which the others led to."""
    ours = _OURS.findall(text)
    if ours:
        name, what = ours[-1]
        kind = getattr(errors, name, None)
        return kind(what) if isinstance(kind, type) and issubclass(kind, TandemError) else LocalError(what)
    if NOT_STARTED in text:
        return LocalError("Spark's JVM did not start", hint="what it said stands above; see --master and --conf")
    if STOPPED in text:
        return LocalError("Spark was stopped", hint="is the cluster up that --master names? Its reason stands above")
    pythons = _PYTHONS.findall(text)
    return LocalError(f"Spark: {pythons[-1] if pythons else _first_line(text)}")


def _first_line(text: str) -> str:
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(_CALL)), "no reason is given")
