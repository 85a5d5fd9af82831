"""Words for the codes that brokers, clients and settings use; pages translate them."""

from tandemq.coordination.registry.records import BrokerPermission, Mode, Role
from tandemq.model.message import SendStatus
from tandemq.model.topic import Permission

ROLES = {Role.MASTER.value: "master", Role.SLAVE.value: "replica"}
MODES = {
    Mode.STATIC.value: "fixed roles",
    Mode.SLAVE_CONSUME.value: "a replica takes over reads",
    Mode.ELECT.value: "a replica becomes the master",
}
"""What happens when a master is lost."""
BROKER_PERMISSIONS = {
    BrokerPermission.FULL.value: "read and write",
    BrokerPermission.WRITE.value: "write",
    BrokerPermission.READ.value: "read",
    BrokerPermission.NONE.value: "none",
}
STAGES = {
    "unread": "reads the group's record",
    "slave": "follows as a replica",
    "claiming": "claims the group's record",
    "preparing": "prepares its log",
    "serving": "serves as the master",
    "handing over": "hands over",
    "awaiting hand-back": "waits for the offset handover",
}
"""Stages of members as brokers report them."""
CODES = {
    "CONSUME_PASSIVELY": "push consumers",
    "CONSUME_ACTIVELY": "pull consumers",
    "CONSUME_POP": "pop consumers",
    "CLUSTERING": "each message goes to one client",
    "BROADCASTING": "each message goes to all clients",
    SendStatus.SEND_OK.value: "stored",
    SendStatus.FLUSH_DISK_TIMEOUT.value: "stored, not flushed to disk in time",
    SendStatus.FLUSH_SLAVE_TIMEOUT.value: "stored, not copied to enough replicas in time",
    SendStatus.SLAVE_NOT_AVAILABLE.value: "stored, no replica is available",
}
"""What clients report about themselves, and the status of a send."""
LANGUAGES = {
    "JAVA": "Java",
    "PYTHON": "Python",
    "GO": "Go",
    "CPP": "C++",
    "DOTNET": ".NET",
    "RUST": "Rust",
    "PHP": "PHP",
}
"""Names of programming languages; they are not translated."""


def rights(*, may_read: bool, may_write: bool) -> str:
    """Return a permission in words."""
    if may_read and may_write:
        return "read and write"
    return "read" if may_read else "write" if may_write else "none"


def topic_rights(perm: int) -> str:
    """Return the permission of a topic in words."""
    return rights(may_read=bool(perm & Permission.READ), may_write=bool(perm & Permission.WRITE))


def word_of(code: str) -> str:
    """Return the word for a code; an unknown code is returned as it is."""
    return CODES.get(code) or MODES.get(code) or ROLES.get(code) or BROKER_PERMISSIONS.get(code) or code


def stage_of(stage: str) -> str:
    """Return the stage or role of a member in words."""
    return STAGES.get(stage) or ROLES.get(stage) or ("does not answer" if stage == "away" else stage)


def language_of(code: str) -> str:
    """Return the name of a client's programming language."""
    return LANGUAGES.get(code, code)
