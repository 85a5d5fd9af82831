"""Errors of Spark and of the lake's library, translated to `tandemq.errors`: the cause only, without JVM stack traces.

Source: docs/guides/pipeline.md, "Jobs".
"""

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tandemq.errors import LocalError
from tandemq.spark.runtime.causes import parse_error


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
        lines = (line.strip() for line in str(error).splitlines())
        raise LocalError(f"the lake: {next(filter(None, lines), 'no reason given')}") from error
