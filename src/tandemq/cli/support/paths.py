"""Parameter types of paths: URLs are rejected as wrong usage before anything is created, except where a lake may be."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.spark.runtime.local_paths import LOCAL_ONLY, local_hint, scheme_of

if TYPE_CHECKING:
    from tandemq.spark.runtime.location import Location


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


class LakePath(click.Path):
    """A local directory, or the URL of a lake or of a log, as text."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002  # click's
        """Return the word for values of an option in help texts; arguments have their own."""
        return "DIRECTORY|URL" if isinstance(param, click.Option) else None

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value to a path or the text of a URL.

        Raises:
            BadParameter: `click.Path` rejects the path, or URLs of that kind are not supported.
        """
        from tandemq.errors import ConfigError  # noqa: PLC0415
        from tandemq.spark.runtime.location import locate  # noqa: PLC0415  # --help needs no Spark

        if scheme_of(os.fspath(value)) is None:
            return super().convert(value, param, ctx)
        try:
            found = locate(os.fspath(value), str(param.human_readable_name if param is not None else "the lake"))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return super().convert(found.url, param, ctx) if found.is_local else os.fspath(value)


def storage_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --storage-option, whose values `lake_location` takes as `storage`."""
    return click.option(
        "--storage-option",
        "storage",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the store at a URL, as deltalake names it; repeatable. Secrets: better as environment "
        "variables, like AWS_SECRET_ACCESS_KEY.",
    )(command)


def lake_locations(given: Sequence[Path | str], storage: tuple[str, ...]) -> "list[Location]":
    """Return the locations of several lakes or logs; the options are for those at URLs.

    Raises:
        ConfigError: an option is malformed, or there are options and no URL.
    """
    urls = [path for path in given if scheme_of(path) is not None]
    return [lake_location(path, storage if path in urls or not urls else ()) for path in given]


def lake_location(given: Path | str, storage: tuple[str, ...]) -> "Location":
    """Return the location of a lake.

    Raises:
        ConfigError: an option is malformed, or the lake is local and has options.
    """
    from tandemq.errors import ConfigError  # noqa: PLC0415
    from tandemq.spark.runtime.location import locate, parse_storage_options  # noqa: PLC0415

    found = locate(given, "the lake", parse_storage_options(storage))
    if storage and found.is_local:
        raise ConfigError("--storage-option is for a lake or a log at a URL", hint="leave it out")
    return found
