"""Mutations of access control and limits, with fixed roles and in groups with a registry."""

# ruff: noqa: ARG005  # a replacement has the signature of what it replaces
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from types import SimpleNamespace
from typing import Any, cast

from lab.sim.world.plan import GROUP_SEEDS, has_access, has_limits
from tandemq.broker.features.access import control, processor, table
from tandemq.broker.features.access.control import AccessControl
from tandemq.broker.features.pop.in_flight import InFlight
from tandemq.broker.features.quotas import table as quotas
from tandemq.broker.features.quotas.feature import QuotaFeature
from tandemq.broker.features.sends import decoded_path
from tandemq.broker.features.sends.processor import SENDS, SendPath
from tandemq.broker.features.sends.slowed import SlowedSends
from tandemq.broker.kernel import dispatcher
from tandemq.broker.kernel.feature import Request
from tandemq.codec.remoting.signature import is_signed
from tandemq.model import access
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import FLAG_ONEWAY
from tandemq.model.pop import MESSAGES_MAX
from tests.mutations.patch import Mutation, both, patched

RIGHTS, LIMITS = frozenset({"I26"}), frozenset({"I27"})


def deny_after_allow() -> AbstractContextManager[Any]:
    """An entry that allows decides before a more specific one that denies."""

    def decide(self: access._RuleIndex, need: Any, address: str) -> bool | None:
        found = [rule for key in self._resources(need) for rule in self.rules.get(key, ())]
        return max((rule.is_allowed for rule in found if rule.matches(need, address)), default=None)

    return patched(access._RuleIndex, "decide", decide)


def signature_not_compared() -> AbstractContextManager[Any]:
    """Any signature is right."""
    return patched(control, "is_signed", lambda *_: True)


def disabled_user_signs() -> AbstractContextManager[Any]:
    """A disabled user may sign requests."""

    def caller(self: AccessControl, command: Any) -> tuple[Any, bool]:
        user = self.user(command.fields.get("AccessKey", ""))
        password = "" if user is None else user.password
        return user, is_signed(command.fields, command.body, command.version, password)

    return patched(AccessControl, "_caller", caller)


def _unchecked(*codes: Code) -> AbstractContextManager[Any]:
    checks = AccessControl.checks

    def some(self: AccessControl, code: int, request: Request) -> bool:
        return code not in codes and checks(self, code, request)

    return patched(AccessControl, "checks", some)


def lite_pull_unchecked() -> AbstractContextManager[Any]:
    """Lite pulls need no rights."""
    return _unchecked(Code.LITE_PULL_MESSAGE)


def commit_unchecked() -> AbstractContextManager[Any]:
    """Commits of offsets need no rights."""
    return _unchecked(Code.UPDATE_CONSUMER_OFFSET)


def refused_send_is_stored() -> AbstractContextManager[Any]:
    """A send that access control refuses is answered so, and stored."""
    take = dispatcher.Dispatcher._take

    def store(self: dispatcher.Dispatcher, link: Any, command: Any, refusal: Any, turn: Any, now: Any) -> None:
        if refusal is not None and command.code in SENDS:
            unanswered = copy(command)
            unanswered.flag |= FLAG_ONEWAY
            self._sends.store_waiting()
            self._sends.take(link, unanswered, now)  # type: ignore[attr-defined]  # of all sends, not of fast ones alone
        take(self, link, command, refusal, turn, now)

    return patched(dispatcher.Dispatcher, "_take", store)


def rights_after_restart() -> AbstractContextManager[Any]:
    """Changed policies count once the broker starts again."""

    change = table.AccessTable._changed

    def changed(self: table.AccessTable, name: str) -> None:
        kept, generation = self._rules.get(name), self.generation
        change(self, name)
        self.generation = generation
        if kept is not None:
            self._rules[name] = kept

    return patched(table.AccessTable, "_changed", changed)


def remembered_rights_stay() -> AbstractContextManager[Any]:
    """What a user was found to be allowed on a connection stays so."""

    def changed(self: table.AccessTable, name: str) -> None:
        generation = self.generation
        change(self, name)
        self.generation = generation

    change = table.AccessTable._changed
    return patched(table.AccessTable, "_changed", changed)


def users_not_saved() -> AbstractContextManager[Any]:
    """A change of users is confirmed, and not saved."""
    change = table.AccessTable._changed

    def changed(self: table.AccessTable, name: str) -> None:
        saver, self._saver = self._saver, cast("Any", SimpleNamespace(change=lambda *_: None))
        change(self, name)
        self._saver = saver

    return patched(table.AccessTable, "_changed", changed)


def users_not_copied() -> AbstractContextManager[Any]:
    """Slaves do not copy users and policies."""
    return patched(table.AccessTable, "take", lambda self, raw: None)


def policies_not_copied() -> AbstractContextManager[Any]:
    """Slaves copy users without their policies."""
    take = table.AccessTable.take

    def keep(self: table.AccessTable, raw: Any) -> None:
        before = dict(self.policies)
        take(self, raw)
        self.policies = before
        self._rules.clear()

    return patched(table.AccessTable, "take", keep)


def users_confirmed_uncopied() -> AbstractContextManager[Any]:
    """Changes of users are confirmed before slaves have them."""
    requests = processor.AccessProcessor.requests

    def alone(self: processor.AccessProcessor) -> dict[Code, Request]:
        return {code: request._replace(is_copied=False) for code, request in requests(self).items()}

    return patched(processor.AccessProcessor, "requests", alone)


def limits_not_copied() -> AbstractContextManager[Any]:
    """Slaves do not copy limits."""
    return patched(quotas.QuotaTable, "take", lambda self, raw: None)


def limits_not_applied() -> AbstractContextManager[Any]:
    """Changed limits count once the broker starts again."""
    apply: Callable[[QuotaFeature], None] = QuotaFeature._apply

    def once(self: QuotaFeature) -> None:
        if self._applied < 0:
            apply(self)
        self._applied = self._table.changes

    return patched(QuotaFeature, "_apply", once)


def batches_not_limited() -> AbstractContextManager[Any]:
    """Batches are not limited."""
    waits = decoded_path.DecodedPath._waits

    def unless_batch(self: decoded_path.DecodedPath, link: Any, command: Any, fields: Any, now: Any) -> bool:
        return command.code != Code.SEND_BATCH_MESSAGE and waits(self, link, command, fields, now)

    return both(
        patched(decoded_path.DecodedPath, "_waits", unless_batch),
        patched(SendPath, "take_ordinary", lambda self, link, data, position, now, sender=None: position),
    )


def users_not_limited() -> AbstractContextManager[Any]:
    """Users have no limit."""
    return patched(QuotaFeature, "user", lambda self, name: None)


def waiting_batch_is_one() -> AbstractContextManager[Any]:
    """A batch that waits for its rate uses it for one message."""
    add = SlowedSends.add

    def one(self: SlowedSends, link: Any, command: Any, topic: str, _messages: int, *rest: Any) -> bool:
        return add(self, link, command, topic, 1, *rest)

    return patched(SlowedSends, "add", one)


def later_send_overtakes() -> AbstractContextManager[Any]:
    """A send within a limit that was raised overtakes those of its connection that wait for the former one."""
    return both(
        patched(decoded_path.DecodedPath, "keeps_order", lambda self, link: False),
        patched(SlowedSends, "wait_ms", lambda self, link, topic, now_ms: 0),
    )


def pulls_not_limited() -> AbstractContextManager[Any]:
    """Deliveries by pulls use nothing of a group's rate."""
    return patched(QuotaFeature, "group", lambda self, name: None)


def in_flight_not_limited() -> AbstractContextManager[Any]:
    """A group may have any number of messages in flight."""
    return patched(InFlight, "room", lambda self, group, wall_ms: MESSAGES_MAX)


def exceeding_send_is_stored() -> AbstractContextManager[Any]:
    """A send beyond a limit is refused, and stored."""
    waits, add = decoded_path.DecodedPath._waits, SlowedSends.add_refused
    refused: list[Any] = []

    def note(self: SlowedSends, link: Any, command: Any, *rest: Any) -> bool:
        refused.append(command)
        return add(self, link, command, *rest)

    def store(self: decoded_path.DecodedPath, link: Any, command: Any, fields: Any, now: Any) -> bool:
        refused.clear()
        is_waiting = waits(self, link, command, fields, now)
        if refused:
            self._store_any(link, command, fields, now)
        return is_waiting

    return both(patched(SlowedSends, "add_refused", note), patched(decoded_path.DecodedPath, "_waits", store))


ACCESS_MUTATIONS: dict[str, Mutation] = {
    "deny-after-allow": Mutation(deny_after_allow, RIGHTS),
    "signature-not-compared": Mutation(signature_not_compared, RIGHTS),
    "disabled-user-signs": Mutation(disabled_user_signs, RIGHTS),
    "lite-pull-unchecked": Mutation(lite_pull_unchecked, RIGHTS),
    "commit-unchecked": Mutation(commit_unchecked, RIGHTS),
    "refused-send-is-stored": Mutation(refused_send_is_stored, RIGHTS),
    "rights-after-restart": Mutation(rights_after_restart, RIGHTS),
    "remembered-rights-stay": Mutation(remembered_rights_stay, RIGHTS),
    "users-not-saved": Mutation(users_not_saved, RIGHTS),
    "policies-not-copied": Mutation(policies_not_copied, RIGHTS),
}
"""Mutations of access control with fixed roles by name."""
LIMIT_MUTATIONS: dict[str, Mutation] = {
    "limits-not-applied": Mutation(limits_not_applied, LIMITS),
    "limits-not-copied": Mutation(limits_not_copied, LIMITS),
    "batches-not-limited": Mutation(batches_not_limited, LIMITS),
    "users-not-limited": Mutation(users_not_limited, LIMITS),
    "later-send-overtakes": Mutation(later_send_overtakes, frozenset({"I4"})),
    "waiting-batch-is-one": Mutation(waiting_batch_is_one, LIMITS),
    "pulls-not-limited": Mutation(pulls_not_limited, LIMITS),
    "in-flight-not-limited": Mutation(in_flight_not_limited, LIMITS),
    "exceeding-send-is-stored": Mutation(exceeding_send_is_stored, LIMITS),
}
"""Mutations of limits with fixed roles by name."""
ACCESS_GROUP_MUTATIONS: dict[str, Mutation] = {
    "next-master-lacks-users": Mutation(users_not_copied, RIGHTS | {"I14"}),
    "users-confirmed-uncopied": Mutation(users_confirmed_uncopied, RIGHTS | {"I14"}),
}
"""Mutations of access control in groups with a registry by name."""
LIMIT_GROUP_MUTATIONS: dict[str, Mutation] = {
    "next-master-lacks-limits": Mutation(limits_not_copied, LIMITS),
}
"""Mutations of limits in groups with a registry by name."""
ACCESS_SEEDS = tuple(filter(has_access, range(1, 300)))
LIMIT_SEEDS = tuple(filter(has_limits, range(1, 300)))
BOTH_SEEDS = tuple(filter(has_limits, ACCESS_SEEDS))
"""The seeds that run with access control, with limits, and with both."""
SEEDS_OF_LIMITS: dict[str, tuple[int, ...]] = {
    "users-not-limited": BOTH_SEEDS,
    "later-send-overtakes": (611_489,),
}
"""The seeds of mutations of limits that other seeds show rarely."""
ACCESS_GROUP_SEEDS = tuple(seed for seed in range(1, 600) if has_access(GROUP_SEEDS + seed))
LIMIT_GROUP_SEEDS = tuple(seed for seed in range(1, 600) if has_limits(GROUP_SEEDS + seed))
"""The same of groups with a registry, without `GROUP_SEEDS`."""
