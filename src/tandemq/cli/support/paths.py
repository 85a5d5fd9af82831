"""The type of arguments and options that are local paths: a URL is wrong usage, before anything is made."""

import os
from typing import Any

import click

from tandemq.spark.runtime.local_paths import LOCAL_ONLY, local_hint, scheme_of


class LocalPath(click.Path):
    """As `click.Path`, but no URL."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            BadParameter: it is a URL, or what `click.Path` raises.
        """
        scheme = scheme_of(os.fspath(value))
        if scheme is not None:
            self.fail(f"{value}: {LOCAL_ONLY}; {local_hint(scheme)}", param, ctx)
        return super().convert(value, param, ctx)
