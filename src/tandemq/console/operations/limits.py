"""Limits of users, topics and consumer groups: list, set, delete."""

from dataclasses import dataclass

import msgspec

from tandemq.client.admin.quotas import Exceeded
from tandemq.console.services import Console, NotFound
from tandemq.errors import ConfigError, ProtocolError
from tandemq.groupdb.audit import Actor
from tandemq.model.quota import EACH, Kind, Quota


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit, and how often it was exceeded."""

    quota: Quota
    exceeded: Exceeded
    is_shared: bool
    """Whether its values are those of `*`: it is listed because it was exceeded, or is redundant."""


async def limits(console: Console) -> list[LimitRow]:
    """Return all limits by kind and name; for every name that exceeded that of each (`*`), a row of its own."""
    found = await console.admin.quotas()
    each = {quota.kind: quota for quota, _ in found if quota.name == EACH}
    return [
        LimitRow(quota, exceeded, quota.name != EACH and _renamed(quota) == each.get(quota.kind))
        for quota, exceeded in found
    ]


def _renamed(quota: Quota) -> Quota:
    return msgspec.structs.replace(quota, name=EACH)


async def set_limit(console: Console, by: Actor, quota: Quota) -> None:
    """Set a limit on all masters.

    Raises:
        ConfigError: it limits nothing, or is malformed.
        TandemError: a broker refuses, or does not answer.
    """
    if quota.is_unlimited:
        raise ConfigError("nothing is limited: give at least one number; to lift a limit, delete it")
    _check(quota)
    before = await _present(console, quota)
    async with console.audited(by, "quota.set", f"{quota.kind} {quota.name}", before=_text(before), after=_text(quota)):
        await console.admin.set_quotas([quota])


async def delete_limit(console: Console, by: Actor, kind: Kind, name: str) -> None:
    """Delete a limit on all masters.

    Raises:
        ConfigError: the name is malformed.
        NotFound: there is no such limit.
        TandemError: a broker refuses, or does not answer.
    """
    gone = Quota(kind, name)
    _check(gone)
    before = await _present(console, gone)
    if before is None:
        raise NotFound("there is no such limit")
    async with console.audited(by, "quota.delete", f"{kind} {name}", before=_text(before)):
        await console.admin.set_quotas([gone])


def _check(quota: Quota) -> None:
    try:
        quota.check()
    except ProtocolError as error:
        raise ConfigError(str(error)) from error


async def _present(console: Console, quota: Quota) -> Quota | None:
    return next((row.quota for row in await limits(console) if row.quota.key == quota.key), None)


def _text(quota: Quota | None) -> str:
    """Return a limit for the audit log; "" for none."""
    return "" if quota is None else msgspec.json.encode(quota).decode()
