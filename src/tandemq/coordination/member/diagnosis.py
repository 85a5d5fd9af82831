"""What a member cannot use of the registry, or what is there and not as it acts; and what an operator does about it.

Source: docs/guides/operations.md, "What a broker says of the registry".
"""

from typing import TYPE_CHECKING

from tandemq.coordination.member.orders import MemberStage

if TYPE_CHECKING:
    from tandemq.coordination.member.machine import MemberMachine


def trouble_of(member: "MemberMachine", now_ms: int) -> str:
    """All of it; "" if there is nothing. A registry that does not answer at all is no trouble here: `view.is_up`.

    Args:
        member: who looks.
        now_ms: monotonic.
    """
    view, config = member.view, member.view.config
    found: list[str] = []
    if config is not None and member.mode is not None and config.mode is not member.mode:
        found.append(
            f"mode {config.mode.value} is configured, {member.mode.value} holds until the brokers are restarted"
        )
    if stranger := _stranger(member):
        found.append(stranger)
    if view.trouble:
        found.append(view.trouble)
    if member.founder.why:
        found.append(member.founder.why)
    if view.is_elsewhere:
        found.append("wait until that session ends, or stop the other process")
    session_ms = member.timing.session_ms
    if view.is_up and now_ms - view.confirmed_ms > session_ms:
        found.append(
            f"the registry is slow: it has answered nothing that was asked in the last {session_ms / 1000:g} s; "
            "look at its load, its disk and the network"
        )
    return "; ".join(found)


def why_unread(member: "MemberMachine") -> str:
    """Why a member that has read no record, or is in none, serves nothing; "" if its stage tells."""
    return (
        (_stranger(member) or member.view.trouble or member.founder.why) if member.stage is MemberStage.UNREAD else ""
    )


def _stranger(member: "MemberMachine") -> str:
    settings = member.settings
    if member.view.config is None or member.own is not None:
        return ""
    name = settings.broker_name
    return (
        f"broker {member.id} is no member of group {name} by its configuration in cluster {settings.cluster}: "
        f"add it (tandemq ha config set {name} --member {member.id},role=slave, then tandemq ha config apply), "
        "or correct its brokerId, brokerName or brokerClusterName"
    )
