"""Values of several options as one argument of a command."""

from collections.abc import Callable
from functools import wraps
from typing import Any

Command = Callable[..., Any]


def gathered(command: Command, name: str, kind: Any) -> Command:
    """Return a command that passes the values of some options as one argument.

    Args:
        command: the command.
        name: of the argument.
        kind: its type, a NamedTuple; a field has the name and the value of an option.
    """

    @wraps(command)
    def run(**values: Any) -> Any:
        own = {field: values.pop(field) for field in kind._fields}
        return command(**values, **{name: kind(**own)})

    return run
