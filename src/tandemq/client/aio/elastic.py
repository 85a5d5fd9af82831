"""Broker groups that join a cluster under traffic, and that leave it.

    join    topics on the new group, readable ──► consumers have its queues ──► topics writable
    leave   routes without its queues to write to ──► producers have left ──► no writes ──► nothing waits or lags

A consumer looks for new queues every 30 s, a producer as well: a message in a queue that no consumer has yet would wait
for that long. So queues are writable only when consumers have them, and writes end only when producers have left.
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from tandemq.client.admin.cluster import ClusterInfo
from tandemq.client.aio.admin import Admin
from tandemq.client.core.routes import MASTER_ID, BrokerGroup
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import LocalError, NetworkError, ProtocolError, RemoteError
from tandemq.model.attributes import MESSAGE_TYPE
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, Permission, TopicConfig, own_topics

ROUTES_S = 31.0
"""Clients fetch routes again within this time: Java's do every 30 s."""
QUIET_S = 3.0
"""How long no message may arrive before producers count as gone."""
STEP_S = 0.5
NAMESPACE = "TANDEMQ_JOINING"
"""Namespace of the name servers' table in which a group that gets topics is noted."""
NOTE_S = 86_400.0
"""How long such a note of an interrupted run counts."""
Show = Callable[[str], None]
"""Shows what is waited for."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a broker group gets when it joins a cluster."""

    broker_name: str
    topics: list[TopicConfig]
    """As they are in the end."""
    groups: list[SubscriptionGroupConfig]
    """Consumer groups that it does not have."""
    left: dict[str, str]
    """Topics that it does not get, and why."""
    read_only: list[str] = field(default_factory=list)
    """Topics that were readable only before the first of the runs that give it topics."""


@dataclass(slots=True)
class DrainState:
    """What keeps a broker group from being stopped."""

    lags: dict[str, int] = field(default_factory=dict)
    """Number of messages that each consumer group has not consumed."""
    timed: int = 0
    """Number of timed messages."""
    delayed: dict[int, int] = field(default_factory=dict)
    """Number of delayed messages by level."""
    open: dict[str, int] = field(default_factory=dict)
    """Number of open transactions by topic, and of all as that of the topic ""."""
    is_reading: bool = False
    """Whether the broker does not know them yet."""

    def __bool__(self) -> bool:
        return bool(self.lags or self.timed or self.delayed or self.open or self.is_reading)

    @property
    def todo(self) -> str:
        """What an operator can do if it takes too long; "" if nothing waits."""
        found = []
        if self.lags:
            found.append("start consumers of these groups, or delete groups that are not used: tandemq group delete")
        if self.timed or self.delayed:
            found.append(
                "delayed and timed messages are delivered when they are due: keep the group running until then"
            )
        if self.open:
            found.append(
                "producers of open transactions commit or roll back, or the broker gives them up after its checks"
            )
        return "; ".join(found)

    def __str__(self) -> str:
        found = [f"{group} lags by {lag:,}" for group, lag in sorted(self.lags.items(), key=lambda item: -item[1])]
        shown = found[:3] + ([f"{len(found) - 3} more groups lag"] if len(found) > 3 else [])
        if self.timed:
            shown.append(f"{self.timed:,} timed messages wait")
        if self.delayed:
            levels = ", ".join(f"{count:,} of level {level}" for level, count in sorted(self.delayed.items()))
            shown.append(f"{sum(self.delayed.values()):,} delayed messages wait ({levels})")
        if self.open:
            most = sorted((name for name in self.open if name), key=lambda name: -self.open[name])[:3]
            topics = ", ".join(f"{name} {self.open[name]:,}" for name in most)
            shown.append(f"{self.open['']:,} transactions are open" + (f" ({topics})" if topics else ""))
        if self.is_reading:
            shown.append("the broker reads its open transactions")
        return ", ".join(shown)


async def plan_joining(admin: Admin, broker_name: str, topics: Collection[str]) -> Joining:
    """Return what a broker group lacks of its cluster.

    Args:
        topics: only these; by default all topics of users, but those whose messages have an order by key, because with
            more queues the next message of a key may go to another queue than the one before it, and those that an
            operator has made readable only on this group.

    Raises:
        LocalError: the group is not registered, it has no master, or a topic does not exist.
    """
    info = await admin.cluster_info()
    cluster = _group(info, broker_name).cluster
    configs = await _user_topics(admin, info)
    read_only = await _read_only(admin, broker_name, configs)
    wanted: list[TopicConfig] = []
    left: dict[str, str] = {}
    if unknown := sorted(set(topics) - configs.keys()):
        raise LocalError(f"topic {unknown[0]} does not exist", hint="tandemq topic list shows all topics")
    for topic, by_broker in configs.items():
        if topics and topic not in topics:
            continue
        others = [c for name, c in by_broker.items() if name != broker_name and info.brokers[name].cluster == cluster]
        if not others:
            continue
        model = max(others, key=lambda config: (config.perm & Permission.WRITE, config.write_queue_nums))
        present = by_broker.get(broker_name)
        if present is not None and present.perm & Permission.WRITE == model.perm & Permission.WRITE:
            continue
        if not topics and topic in read_only:
            left[topic] = f"its queues on {broker_name} are readable only; --topic opens them"
            continue
        if not topics and (model.order or model.attributes.get(MESSAGE_TYPE) == "FIFO"):
            left[topic] = "its messages have an order by key"
            continue
        wanted.append(model if present is None else replace(present, perm=present.perm | Permission.WRITE))
    known = await admin.groups(broker_name)
    groups = [config for name, config in (await admin.groups()).items() if name not in known]
    return Joining(broker_name, wanted, groups, left, read_only)


async def _read_only(admin: Admin, broker_name: str, configs: Mapping[str, dict[str, TopicConfig]]) -> list[str]:
    """Return the topics that were readable only on a group before it got topics: a run that was interrupted leaves its
    own readable only, too, and has noted the others."""
    noted = await admin.get_value(NAMESPACE, broker_name)
    if noted is not None:
        try:
            at_s, topics = json.loads(noted)
            if 0 <= time.time() - at_s < NOTE_S:
                return [str(topic) for topic in topics]
        except (ValueError, TypeError):
            pass
    return sorted(
        topic
        for topic, by_broker in configs.items()
        if broker_name in by_broker and not by_broker[broker_name].perm & Permission.WRITE
    )


def _group(info: ClusterInfo, broker_name: str) -> BrokerGroup:
    group = info.brokers.get(broker_name)
    if group is None or MASTER_ID not in group.members:
        known = ", ".join(sorted(name for name, found in info.brokers.items() if MASTER_ID in found.members))
        raise LocalError(
            f"no master of {broker_name} is registered",
            hint=f"start it with brokerName={broker_name} and these name servers; registered: {known or 'none'}",
        )
    return group


async def _user_topics(admin: Admin, info: ClusterInfo) -> dict[str, dict[str, TopicConfig]]:
    """Return the configurations of topics that are neither the brokers' own nor a group's, by topic and broker."""
    own = own_topics(info.brokers, info.clusters)
    configs = await admin.topic_configs()
    return {
        topic: by_broker
        for topic, by_broker in configs.items()
        if topic not in own and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    }


async def join(admin: Admin, joining: Joining, wait_s: float, show: Show) -> list[str]:
    """Give a broker group its topics: first for consumers, then for producers too. May be repeated after a failure.

    Args:
        wait_s: how long consumers are waited for.

    Returns:
        consumer groups that did not report all new queues in time, as those of gRPC clients never do.

    Raises:
        NetworkError, RemoteError: a broker failed. What was done stays.
    """
    await admin.put_value(NAMESPACE, joining.broker_name, json.dumps([int(time.time()), joining.read_only]))
    for group in joining.groups:
        await admin.create_group(group, broker_name=joining.broker_name)
    for topic in list(joining.topics):
        try:
            await admin.put_topic(replace(topic, perm=topic.perm & ~Permission.WRITE), joining.broker_name)
        except RemoteError as error:
            joining.topics.remove(topic)
            joining.left[topic.topic_name] = str(error)
    end_s = time.monotonic() + wait_s
    queues = {
        topic.topic_name: {
            MessageQueue(topic.topic_name, joining.broker_name, number) for number in range(topic.read_queue_nums)
        }
        for topic in joining.topics
    }
    lacking = set(await admin.groups())
    while lacking := {group for group in lacking if await _lacks(admin, group, queues)}:
        if time.monotonic() >= end_s:
            break
        show(f"waiting for consumers of the new queues: {', '.join(sorted(lacking)[:3])}")
        await asyncio.sleep(STEP_S)
    for topic in joining.topics:
        await admin.put_topic(topic, joining.broker_name)
    await admin.put_value(NAMESPACE, joining.broker_name, None)
    return sorted(lacking)


async def _lacks(admin: Admin, group: str, queues: Mapping[str, set[MessageQueue]]) -> bool:
    """Return whether members of a group consume a topic, but not all of these queues of it."""
    try:
        found = await admin.connections(group)
    except (LocalError, NetworkError, RemoteError):  # no broker knows it, or a master is being switched
        return False
    if found is None or not found.connections:
        return False
    topics = found.subscriptions.keys() & queues.keys()
    wanted = {queue for topic in topics for queue in queues[topic]}
    if not wanted:
        return False
    held: list[set[MessageQueue]] = []
    for member in found.connections:
        try:
            held.append(_held(await admin.running_info(group, member.client_id)))
        except (LocalError, NetworkError, RemoteError, ProtocolError):  # it does not tell, or it has just left
            held.append(set())
    if found.message_model == "BROADCASTING":
        return any(wanted - queues_of_member for queues_of_member in held)
    return bool(wanted - set().union(*held))


def _held(running: Mapping[str, object]) -> set[MessageQueue]:
    found: set[MessageQueue] = set()
    for name in ("mqTable", "mqPopTable"):
        table = running.get(name)
        for key in table if isinstance(table, dict) else ():
            queue = loads(key.encode())
            found.add(MessageQueue(str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])))
    return found


async def unplaced_topics(admin: Admin, broker_name: str) -> list[str]:
    """Return the topics to which producers can send on this broker group only.

    Raises:
        LocalError: the group is not registered, or has no master.
    """
    info = await admin.cluster_info()
    _group(info, broker_name)
    takes = {broker_name}
    for name, group in info.brokers.items():
        if MASTER_ID in group.members and await _takes_writes(admin, group.members[MASTER_ID]):
            takes.add(name)
    found: list[str] = []
    for topic, by_broker in (await _user_topics(admin, info)).items():
        writable = {name for name, config in by_broker.items() if config.perm & Permission.WRITE}
        if writable & takes == {broker_name}:
            found.append(topic)
    return found


async def _takes_writes(admin: Admin, master: str) -> bool:
    """Return whether a master takes messages: it has not been drained."""
    permission = (await admin.broker_config(master)).get("brokerPermission", "")
    return bool(int(permission or Permission.READ_WRITE) & Permission.WRITE)


async def leave(admin: Admin, broker_name: str, wait_s: float, show: Show) -> None:
    """End the writes of clients to a broker group: producers leave it first, so that no send is refused.

    Args:
        wait_s: how long producers are waited for; those that stay get NO_PERMISSION, and send elsewhere.

    Raises:
        LocalError: the group is not registered, or has no master.
        NetworkError, RemoteError: a server failed; the command may be repeated.
    """
    members = _group(await admin.cluster_info(), broker_name).members
    await admin.set_write_permission(broker_name, may_write=False)
    began_s = quiet_s = time.monotonic()
    ends = await _ends(admin, broker_name)
    while (now_s := time.monotonic()) < began_s + wait_s:
        if now_s >= max(began_s + min(ROUTES_S, wait_s), quiet_s + QUIET_S):
            break
        show("waiting until producers have left")
        await asyncio.sleep(STEP_S)
        if (now_ends := await _ends(admin, broker_name)) != ends:
            ends, quiet_s = now_ends, time.monotonic()
    await _permit(admin, members, Permission.READ)


async def _ends(admin: Admin, broker_name: str) -> str:
    """Return how many messages clients have sent to the master of a group."""
    (master,) = (await admin.cluster_info()).masters(None, broker_name)
    return (await admin.broker_runtime(master)).get("msgPutTotalTodayNow", "")


async def _permit(admin: Admin, members: Mapping[int, str], permission: Permission) -> None:
    for address in members.values():
        await admin.update_broker_config(address, {"brokerPermission": str(int(permission))})


async def stay(admin: Admin, broker_name: str) -> None:
    """Allow writes to a broker group again.

    Raises:
        LocalError: the group is not registered, or has no master.
        NetworkError, RemoteError: a server failed; the command may be repeated.
    """
    members = _group(await admin.cluster_info(), broker_name).members
    await _permit(admin, members, Permission.READ_WRITE)
    await admin.set_write_permission(broker_name, may_write=True)


async def until_idle(admin: Admin, broker_name: str, limit_s: float | None, show: Show) -> DrainState:
    """Wait until a broker group can be stopped; return what still keeps it after `limit_s` seconds, if anything does.

    Raises:
        NetworkError, RemoteError: a broker does not report it.
    """
    began_s = time.monotonic()
    while waiting := await _waiting(admin, broker_name):
        if limit_s is not None and time.monotonic() >= began_s + limit_s:
            break
        show(f"waiting: {waiting}")
        await asyncio.sleep(STEP_S)
    return waiting


async def _waiting(admin: Admin, broker_name: str) -> DrainState:
    found = DrainState()
    for group, queues in (await admin.all_progress()).items():
        lag = sum(progress.lag for queue, progress in queues.items() if queue.broker_name == broker_name)
        if lag:
            found.lags[group] = lag
    (master,) = (await admin.cluster_info()).masters(None, broker_name)
    figures = await admin.broker_runtime(master)
    found.timed = int(figures.get("timerCongestNum", "0"))
    delayed = {int(level): _remaining(offsets) for level, offsets in _figures_of("scheduleMessageOffset_", figures)}
    found.delayed = {level: count for level, count in delayed.items() if count}
    transactions = figures.get("transactionsOpen", "0")  # a Java broker does not tell
    found.is_reading = not transactions
    if count := int(transactions or "0"):
        found.open = {"": count} | {topic: int(number) for topic, number in _figures_of("transactionsOpen_", figures)}
    return found


def _figures_of(prefix: str, figures: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name.removeprefix(prefix), value) for name, value in figures.items() if name.startswith(prefix)]


def _remaining(offsets: str) -> int:
    done, _, end = offsets.partition(",")
    return int(end) - int(done)
