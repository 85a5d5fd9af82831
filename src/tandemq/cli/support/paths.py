"""Parameter type of local paths: a URL is rejected as wrong usage before anything is created."""

import os
from typing import Any

import click

from tandemq.spark.runtime.local_paths import LOCAL_ONLY, local_hint, scheme_of


class LocalPath(click.Path):
    """A `click.Path` that rejects URLs."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value to a path.

        Raises:
            BadParameter: the value is a URL, or `click.Path` rejects it.
        """
        scheme = scheme_of(os.fspath(value))
        if scheme is not None:
            self.fail(f"{value}: {LOCAL_ONLY}; {local_hint(scheme)}", param, ctx)
        return super().convert(value, param, ctx)
