"""Consumer groups: create, delete, reset of offsets and its preview."""

import json
from dataclasses import dataclass

from tandemq.client.admin.groups import ResetTarget
from tandemq.console.cluster.topics_and_groups import NEW_S
from tandemq.console.services import Console
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import Actor
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.model.topic import group_name_error

RETRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """Effect of a reset on one queue."""

    queue: MessageQueue
    before: int | None
    after: int

    @property
    def again(self) -> int:
        """Messages that would be delivered again."""
        return max(0, (self.before or 0) - self.after) if self.before is not None else 0

    @property
    def skipped(self) -> int:
        """Messages that would be skipped."""
        return max(0, self.after - (self.before or 0))


async def create_group(console: Console, by: Actor, group: str, retries: int) -> None:
    """Create a group with default settings but the number of retries.

    Raises:
        ConfigError: the name is invalid.
        TandemError: a broker refuses, or does not answer.
    """
    if (fault := group_name_error(group)) is not None:
        raise ConfigError(fault)
    async with console.audited(by, "group.create", group, after=json.dumps({"retries": retries})):
        await console.admin.create_group(SubscriptionGroupConfig(group, retry_max_times=retries))
    console.tables.forget()


async def delete_group(console: Console, by: Actor, group: str) -> None:
    """Delete a group with its offsets, retry topic and dead letters."""
    async with console.audited(by, "group.delete", group):
        await console.admin.delete_group(group, clean=True)
    console.tables.forget()


async def plan_reset(console: Console, group: str, topic: str, target: ResetTarget) -> list[PlannedOffset]:
    """Return the effect of a reset without a change."""
    before = await console.tables.progress(group, NEW_S) or {}
    plan = await console.admin.plan_reset(topic, target)
    return [
        PlannedOffset(queue, before[queue].consumer_offset if queue in before else None, offset)
        for queue, offset in plan.items()
    ]


async def reset_offsets(
    console: Console, by: Actor, group: str, topic: str, target: ResetTarget
) -> list[PlannedOffset]:
    """Reset the offsets of a group, and return the plan made just before."""
    plan = await plan_reset(console, group, topic, target)
    places = {f"{planned.queue.broker_name}/{planned.queue.queue_id}": planned for planned in plan}
    async with console.audited(
        by,
        "offsets.reset",
        f"{group}, {topic}",
        before=json.dumps({place: planned.before for place, planned in places.items()}),
        after=json.dumps({place: planned.after for place, planned in places.items()}),
    ):
        await console.admin.reset_offsets(group, topic, target)
    console.tables.forget()
    return plan
