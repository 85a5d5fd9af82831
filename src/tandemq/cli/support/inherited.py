"""Options that may also be written before the command's name: tandemq -n host:9876 --json topic list.

The root command has an option of the same name, which remembers its value (`remember`). The value behind the command's
name counts before that one, and that one before the environment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

_META = "tandemq.inherited"


class InheritedOption(click.Option):
    """Option whose value may stand before the command's name."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value, and where it comes from; DEFAULT_MAP: the root command."""
        value, source = super().consume_value(ctx, opts)
        given: dict[str, Any] = ctx.meta.get(_META, {})
        if source is not ParameterSource.COMMANDLINE and self.opts[0] in given:
            return given[self.opts[0]], ParameterSource.DEFAULT_MAP
        return value, source


def remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Remember the value of an option of the root command, if it is given; for `callback=`."""
    if value:
        context.meta.setdefault(_META, {})[parameter.opts[0]] = value


def check_inherited(context: click.Context, words: Sequence[str]) -> None:
    """Check that a command has the options that were written before its name.

    Args:
        context: of the root command.
        words: its arguments, from the command's name on.

    Raises:
        UsageError: it has no such option.
    """
    given: dict[str, Any] = context.meta.get(_META, {})
    command, path = context.command, [context.command_path]
    options: set[str] = set()
    for word in words:
        child = command.get_command(context, word) if isinstance(command, click.Group) else None
        if child is not None:
            command = child
            path.append(word)
            options.update(option for parameter in child.params for option in parameter.opts)
    for option in given:
        if option not in options and len(path) > 1:
            raise click.UsageError(f"`{' '.join(path)}` has no option {option}; leave it out", context)
