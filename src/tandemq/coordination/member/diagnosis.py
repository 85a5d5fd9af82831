"""Problems of a member with the registry, as sentences for operators that say what to do.

Shown by `tandemq ha status` and logged. Source: docs/guides/operations.md, "Registry messages of a broker".
"""

from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.founding import Founding
from tandemq.coordination.member.older_record import OlderRecord


class Diagnosis:
    """Finds problems in the data that a member has read from the registry."""

    def __init__(self, facts: MemberFacts, founding: Founding, older: OlderRecord) -> None:
        """Reads these parts, changes none."""
        self._facts = facts
        self._view = facts.view
        self._founding = founding
        self._older = older

    def problem(self, now_ms: int) -> str:
        """Return all problems at a monotonic time, "" if there are none.

        A registry that does not answer at all is not reported here: see `RegistryView.is_up`.
        """
        view = self._view
        found = [self._changed_mode(), self._no_member(), view.problem, self._founding.reason, self._older.reason()]
        if view.is_elsewhere:
            found.append("wait until that session expires, or stop the other process")
        session_ms = self._facts.lease.timing.session_ms
        if view.is_up and now_ms - view.confirmed_ms > session_ms:
            found.append(
                f"the registry is slow: it has not answered any request of the last {session_ms / 1000:g} s; "
                "check its load, its disk and the network"
            )
        return "; ".join(text for text in found if text)

    def why_unclaimed(self) -> str:
        """Return why a broker that the record names does not serve, for a reason that other members have reported."""
        return self._older.objection()

    def why_unread(self) -> str:
        """Return why a broker in stage UNREAD serves no clients; "" if there is no special reason."""
        return self._no_member() or self._view.problem or self._founding.reason

    def _changed_mode(self) -> str:
        config, mode = self._view.config, self._facts.membership.mode
        if config is None or mode is None or config.mode is mode:
            return ""
        return (
            f"mode {config.mode.value} is configured, but the brokers run in mode {mode.value}: restart them to "
            "change the mode"
        )

    def _no_member(self) -> str:
        membership = self._facts.membership
        if self._view.config is None or membership.own is not None:
            return ""
        settings, name = membership.settings, membership.settings.broker_name
        return (
            f"broker {membership.id} is not a member of group {name} in the configuration of cluster "
            f"{settings.cluster}: add it (tandemq ha config set {name} --member {membership.id},role=slave, then "
            "tandemq ha config apply), or correct its brokerId, brokerName or brokerClusterName"
        )
