"""Consumers behind proxies, by group: operators see them, and their requests reach them.

A proxy reports them on its connection; when that closes they are removed. They are no members of their groups: they
pop, and so take no part in the division of queues among pulling consumers.

Source: docs/reference/grpc.md, "What operators see".
"""

from typing import NamedTuple

from tandemq.broker.state.clients import CLIENT_ID_CHARACTERS_MAX, Member, check_subscriptions, memory_of
from tandemq.errors import ProtocolError
from tandemq.model.group import ConsumerData, SubscriptionData
from tandemq.model.proxied import ProxiedConsumer, ProxiedKey, ProxiedRefusal, ProxiedReport
from tandemq.model.topic import group_name_error

CONSUMERS_MAX = 100_000
BYTES_MAX = 32 << 20
"""Memory budget of all consumers behind proxies."""
CHARACTERS_MAX = 100
"""Of an address or a language."""
_BYTES = 800
"""Estimated memory of a consumer without its texts and subscriptions."""
REASON_CHARACTERS_MAX = 200


class Proxied(NamedTuple):
    """A consumer behind a proxy."""

    member: Member
    """Its `link` is the connection of the proxy."""
    data: ConsumerData
    size: int
    """Estimated memory."""


class ProxiedConsumers:
    """All consumers behind proxies."""

    def __init__(self) -> None:
        """Begin without consumers."""
        self._groups: dict[str, dict[str, Proxied]] = {}
        """By group and client id; of two proxies the one that reported the client last has it."""
        self._links: dict[int, dict[ProxiedKey, None]] = {}
        self._count = 0
        self._bytes = 0

    def take(self, report: ProxiedReport, link: int, now_ms: int) -> list[ProxiedRefusal]:
        """Apply a report; return the consumers that were not taken."""
        for key in report.left:
            self._remove(key, link)
        refused = []
        for consumer in report.joined:
            try:
                self._add(consumer, link, now_ms)
            except ProtocolError as error:
                reason = str(error)[:REASON_CHARACTERS_MAX]
                refused.append(ProxiedRefusal(consumer.consumer.group_name, consumer.client_id, reason))
        return refused

    def _add(self, consumer: ProxiedConsumer, link: int, now_ms: int) -> None:
        data = consumer.consumer
        if (fault := group_name_error(data.group_name)) is not None:
            raise ProtocolError(fault)
        if not 0 < len(consumer.client_id) <= CLIENT_ID_CHARACTERS_MAX:
            raise ProtocolError(f"the client id must have 1 to {CLIENT_ID_CHARACTERS_MAX} characters")
        if max(len(consumer.address), len(consumer.language)) > CHARACTERS_MAX:
            raise ProtocolError(f"address and language have at most {CHARACTERS_MAX} characters")
        check_subscriptions(data)
        key = ProxiedKey(data.group_name, consumer.client_id)
        known = self._groups.get(key.group, {}).get(key.client_id)
        size = _BYTES + 4 * (len(key.group) + len(key.client_id)) + sum(map(memory_of, data.subscription_data_set))
        if known is None and self._count >= CONSUMERS_MAX:
            raise ProtocolError(f"{CONSUMERS_MAX} consumers are behind proxies already")
        if self._bytes + size - (known.size if known is not None else 0) > BYTES_MAX:
            raise ProtocolError(f"the consumers behind proxies take {BYTES_MAX} bytes already")
        if known is not None:
            self._remove(key, known.member.link)
        member = Member(link, key.client_id, consumer.address, consumer.language, consumer.version, now_ms)
        self._groups.setdefault(key.group, {})[key.client_id] = Proxied(member, data, size)
        self._links.setdefault(link, {})[key] = None
        self._count += 1
        self._bytes += size

    def _remove(self, key: ProxiedKey, link: int) -> None:
        """Remove a consumer, unless another proxy has it by now."""
        found = self._groups.get(key.group, {}).get(key.client_id)
        if found is None or found.member.link != link:
            return
        del self._groups[key.group][key.client_id]
        if not self._groups[key.group]:
            del self._groups[key.group]
        del self._links[link][key]
        if not self._links[link]:
            del self._links[link]
        self._count -= 1
        self._bytes -= found.size

    def link_closed(self, link: int) -> None:
        """Remove the consumers behind a proxy whose connection has closed."""
        for key in list(self._links.get(link, ())):
            self._remove(key, link)

    def find(self, group: str, client_id: str) -> Member | None:
        """Return a consumer; None if no proxy has it."""
        found = self._groups.get(group, {}).get(client_id)
        return None if found is None else found.member

    def of_group(self, group: str) -> list[Proxied]:
        """Return the consumers of a group, in the order in which they joined."""
        return list(self._groups.get(group, {}).values())

    def subscriptions(self, group: str) -> dict[str, SubscriptionData]:
        """Return what the consumers of a group subscribe to, by topic; of several that of the newest one."""
        return {data.topic: data for each in self.of_group(group) for data in each.data.subscription_data_set}
