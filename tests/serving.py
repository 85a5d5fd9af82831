"""Verdicts of a broker's role, changed by a test."""

from typing import Any

from msgspec import structs

from tandemq.broker.node import Broker


def let(node: Broker, **changes: Any) -> None:
    """Have the verdict of a broker's role differ in these fields of `Serving`, from its next turn on."""
    role = node.role
    decided = type(role).serving
    role.serving = lambda now: structs.replace(decided(role, now), **changes)  # type: ignore[method-assign]
