"""Log lines about a broker's registry and its settings: each problem once, and once when it is over."""

import logging

from tandemq.boundary import Now
from tandemq.broker.kernel.context import CurrentConfig
from tandemq.broker.roles.registry_client import BrokerRegistry
from tandemq.coordination.member.machine import MemberMachine

log = logging.getLogger(__name__)


class ProblemLog:
    """Logs problems of the registry and the settings when they change."""

    def __init__(self, registry: BrokerRegistry, current: CurrentConfig) -> None:
        """Nothing was logged."""
        self._registry = registry
        self._current = current
        self._found = ""
        self._since_ms = 0
        self._logged = ""
        self._warned = ""
        self._is_role_compared = False

    def tick(self, member: MemberMachine, warning: str, now: Now) -> None:
        """Log what has changed. What lasts no longer than a session is not logged: after a restart, for instance, our
        own earlier session is still there."""
        if warning != self._warned:
            self._warned = warning
            log.warning("failover: %s", warning)
        if self._registry.is_up:
            found = member.problem(now.mono_ms)
        else:
            found = (
                f"the registry {self._registry.address} does not answer: until it does, no member takes over, and a "
                "broker that starts serves no client; see whether it runs and can be reached"
            )
        if found != self._found:
            self._found, self._since_ms = found, now.mono_ms
        if found == self._logged or now.mono_ms - self._since_ms < member.timing.session_ms * 3 // 2:
            return
        level = logging.ERROR if found and member.is_record_older else logging.WARNING
        log.log(level, "failover: %s %s", "trouble:" if found else "over:", found or self._logged)
        self._logged = found

    def compare_role(self, master: int, *, is_master: bool) -> None:
        """Log once per start that the settings name another role than the group's record, which counts."""
        role, was_compared, self._is_role_compared = self._current.config.role, self._is_role_compared, True
        if role and not was_compared and (role != "SLAVE") != is_master:
            log.warning(
                "failover: brokerRole=%s is not used: the group's record names broker %d as master", role, master
            )
