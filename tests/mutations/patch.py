"""Attributes replaced for a while, and the record of a mutation."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

Patch = Callable[[], AbstractContextManager[Any]]
"""Takes one safety away for as long as the context lasts; its docstring says which."""


class Mutation(NamedTuple):
    """One safety that can be switched off."""

    patch: Patch
    rules: frozenset[str]
    """The rules of the simulation that may notice it first."""


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def both(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter several contexts at once."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
