"""Limits of users, topics and consumer groups: list, set, delete."""

from tandemq.console.api.handlers.parts import part_of
from tandemq.console.api.operation import ApiCall
from tandemq.console.api.requests import LimitOrder, LimitQuery, ListQuery
from tandemq.console.api.responses import LimitItem, LimitPage
from tandemq.console.operations import limits
from tandemq.console.operations.limits import LimitRow
from tandemq.model.quota import Quota


def _item(row: LimitRow) -> LimitItem:
    quota = row.quota
    return LimitItem(
        kind=quota.kind,
        name=quota.name,
        messages_per_second=quota.messages_per_second,
        bytes_per_second=quota.bytes_per_second,
        connections=quota.connections,
        in_flight=quota.in_flight,
        slows=quota.slows,
        refused=row.exceeded.refused,
        slowed=row.exceeded.slowed,
    )


def _name(row: LimitRow) -> str:
    return f"{row.quota.kind} {row.quota.name}"


async def list_limits(call: ApiCall, query: ListQuery) -> LimitPage:
    """The limits by kind and name, and how often each was exceeded."""
    wanted = query.q.lower()
    rows = [row for row in await limits.limits(call.console) if wanted in _name(row).lower()]
    found, following = part_of(rows, _name, query.cursor, query.limit)
    return LimitPage(items=[_item(row) for row in found], next=following)


async def set_limit(call: ApiCall, body: LimitOrder) -> LimitOrder:
    """Set a limit on all masters; what is 0 is unlimited."""
    quota = Quota(
        body.kind,
        body.name,
        body.messages_per_second,
        body.bytes_per_second,
        body.connections,
        body.in_flight,
        body.slows,
    )
    await limits.set_limit(call.console, call.actor, quota)
    return body


async def delete_limit(call: ApiCall, query: LimitQuery) -> None:
    """Delete a limit on all masters."""
    await limits.delete_limit(call.console, call.actor, query.kind, query.name)
