"""What a member of a group with a registry says to clients and operators about its permissions and settings."""

from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import PermissionChanged
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import NOBODY, Mode

_ASYNC_RISK = (
    "brokerRole=ASYNC_MASTER: messages are acknowledged before a slave has them, so that some may be missing while the "
    "slave serves reads, and are lost with the master's disk; remove brokerRole to wait for the slave"
)


def permission_text(change: PermissionChanged) -> str:
    """Return what clients may do from now on, and why."""
    may = {(True, True): "be read and written", (True, False): "be read", (False, True): "be written"}
    what = may.get((change.may_read, change.may_write))
    return f"may {what}: {change.why}" if what else f"may neither be read nor written: {change.why}"


def not_readable(member: MemberMachine, broker_name: str) -> str:
    """Return why a consumer is refused, and which broker serves the group."""
    state = member.view.state
    holder = NOBODY if state is None else holder_of(state)
    record = (member.view.live or {}).get(holder)
    serving = f"broker {holder} at {record.address} serves" if record is not None else "no broker serves now"
    return f"broker {member.id} of {broker_name} is not readable: {serving}"


def settings_warning(mode: Mode | None, *, waits_for_replicas: bool) -> str:
    """Return what operators should know about the settings; "" if there is nothing."""
    return _ASYNC_RISK if mode is Mode.SLAVE_CONSUME and not waits_for_replicas else ""
