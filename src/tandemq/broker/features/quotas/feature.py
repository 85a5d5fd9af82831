"""Limits of users, topics and consumer groups as a feature.

    sends        at their topic (`TopicTarget.budget`) and at their connection (`Link.budget`), by `features.sends`
    deliveries   of a group, by `features.pulls` and `features.pop`
    connections  of a user, by `features.access`

Source: docs/reference/quotas.md.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.quotas.table import CopiedQuotaTable, QuotaTable
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.bodies import decode_body
from tandemq.engine import Budget
from tandemq.errors import ProtocolError
from tandemq.model.access import RESERVED_PREFIX
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.quota import EACH, GROUP, TOPIC, USER, Quota
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, is_system_group
from tandemq.telemetry.families import Batch, Source, Values, counter

EXCEEDED = counter(
    "tandemq_quota_exceeded_total", "Requests beyond the limit of a user, topic or group.", "kind", "result"
)
BUDGETS_MAX = 200_000
"""Maximum number of users and groups whose use is known at a time."""
BODY_BYTES_MAX = 1 << 20
_OWN_TOPICS = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_")


class _QuotasBody(msgspec.Struct):
    quotas: list[Quota]


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the limits."""
    return (QuotaFeature(kernel),)


class QuotaFeature(Feature, Quotas):
    """The limits of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._topics = kernel.topics
        self._table = QuotaTable(kernel.saver)
        self._applied = -1
        self._budgets: dict[tuple[str, str], Budget | None] = {}
        """Rates in use so far, by kind and name."""
        self._exceeded: dict[tuple[str, ...], int] = {}
        """Number of requests, by kind and result."""
        self._topics.limit_with(self._of_topic)
        self._apply()

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.TANDEM_SET_QUOTAS: Request(self._on_set, Right.WRITE, is_saved=True, is_copied=True)}

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (CopiedQuotaTable(self._table, self._counts),)

    def sources(self) -> tuple[Source, ...]:
        """See `Feature`."""
        return (self._collect,)

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        values: Values = dict(self._exceeded)
        yield Batch(EXCEEDED, values)

    def _counts(self) -> list[dict[str, Any]]:
        """Return how often each limit was exceeded since it was set, or since the start."""
        return [
            {"kind": kind, "name": name, "refused": budget.refused, "slowed": budget.slowed}
            for (kind, name), budget in self._budgets.items()
            if budget is not None and (budget.refused or budget.slowed)
        ]

    def _on_set(self, _link: Link, command: Command, _now: Now) -> Command | None:
        if len(command.body) > BODY_BYTES_MAX:
            raise ProtocolError(f"the body has {len(command.body)} bytes, the maximum is {BODY_BYTES_MAX}")
        self._table.put(decode_body(command.body, _QuotasBody, "limits").quotas)
        self._apply()
        return command.answer(ResponseCode.SUCCESS)

    def begin_turn(self, _turn: object, _now: Now) -> None:
        """Apply the limits that came from the master."""
        if self._table.changes != self._applied:
            self._apply()

    def _apply(self) -> None:
        """Apply changed limits: what was used so far is forgotten."""
        self._applied = self._table.changes
        self.version += 1
        self._budgets.clear()
        kinds = {kind for kind, _ in self._table.table}
        self.limits_users, self.limits_groups = USER in kinds, GROUP in kinds
        for name, topic in self._topics.table.items():
            topic.budget = self._of_topic(name)

    def topic_removed(self, topic: str, _now: Now) -> None:
        """See `Feature`."""
        self._budgets.pop((TOPIC, topic), None)

    def group_removed(self, group: str, _now: Now) -> None:
        """See `Feature`."""
        self._budgets.pop((GROUP, group), None)

    # Rates.

    def _of_topic(self, name: str) -> Budget | None:
        return self._budget(TOPIC, name, is_system=name in SYSTEM_TOPICS or name.startswith(_OWN_TOPICS))

    def user(self, name: str) -> Budget | None:
        """See `Quotas`."""
        return self._budget(USER, name, is_system=name.startswith(RESERVED_PREFIX))

    def group(self, name: str) -> Budget | None:
        """See `Quotas`."""
        return self._budget(GROUP, name, is_system=is_system_group(name))

    def _budget(self, kind: str, name: str, *, is_system: bool = False) -> Budget | None:
        """Return a rate. `is_system`: the limit of each does not hold for it."""
        key = kind, name
        if key in self._budgets:
            return self._budgets[key]
        quota = self._table.table.get(key) or (None if is_system else self._table.table.get((kind, EACH)))
        budget = None
        if quota is not None and (quota.messages_per_second or quota.bytes_per_second):
            budget = Budget(f"{kind} {name}", quota.messages_per_second, quota.bytes_per_second, slows=quota.slows)
        if len(self._budgets) >= BUDGETS_MAX:
            self._budgets.clear()
        self._budgets[key] = budget
        return budget

    def connections_of(self, user: str) -> int:
        """See `Quotas`."""
        quota = None if user.startswith(RESERVED_PREFIX) else self._table.of(USER, user)
        return 0 if quota is None else quota.connections

    def in_flight_of(self, group: str) -> int:
        """See `Quotas`."""
        quota = self._table.of(GROUP, group)
        return 0 if quota is None else quota.in_flight

    def refused(self, budget: Budget) -> None:
        """See `Quotas`."""
        budget.refused += 1
        self._count(budget, "refused")

    def slowed(self, budget: Budget) -> None:
        """See `Quotas`."""
        budget.slowed += 1
        self._count(budget, "slowed")

    def _count(self, budget: Budget, result: str) -> None:
        key = budget.name.partition(" ")[0], result
        self._exceeded[key] = self._exceeded.get(key, 0) + 1
