"""Errors of Spark and of the lake's library, translated to `tandemq.errors`: the cause only, without JVM stack traces.

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
def translate_errors() -> Iterator[None]:
    """Translate errors of Spark and of the lake's library to `tandemq.errors`.

    Raises:
        TandemError: the original one, if it was raised in a Python worker of Spark; a LocalError otherwise.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise parse_error(str(error)) from error
    except DeltaError as error:
        raise LocalError(f"the lake: {_first_line(str(error))}") from error


def parse_error(text: str) -> TandemError:
    """Return the error described by an error text of Spark: the last one named in it is the cause."""
    ours = _OURS.findall(text)
    if ours:
        name, what = ours[-1]
        kind = getattr(errors, name, None)
        return kind(what) if isinstance(kind, type) and issubclass(kind, TandemError) else LocalError(what)
    if NOT_STARTED in text:
        return LocalError("Spark's JVM did not start", hint="see its output above, and check --master and --conf")
    if STOPPED in text:
        return LocalError("Spark was stopped", hint="is the cluster named by --master up? See the reason above")
    pythons = _PYTHONS.findall(text)
    return LocalError(f"Spark: {pythons[-1] if pythons else _first_line(text)}")


def _first_line(text: str) -> str:
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(_CALL)), "no reason given")
