"""Putting another value in place of an attribute for a while: how safeties are switched off, and waits shortened."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """An attribute has another value inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
