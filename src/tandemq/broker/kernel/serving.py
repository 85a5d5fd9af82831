"""What a broker may do in a turn, as one value.

The role computes it from the settings, or from the group's record, leases and reports; the node keeps it for the turn
(`CurrentTurn.serving`). Everything else only reads it. Source: docs/internals/failover.md, "A broker and its member".
"""

from enum import Enum
from typing import NamedTuple

import msgspec

from tandemq.model.codes import ResponseCode

NO_LIMIT = 1 << 62
"""A log offset behind every message."""


class Right(Enum):
    """What a request needs in order to be answered."""

    READ = "read"
    WRITE = "write"
    COMMIT = "commit"
    POP = "pop"
    """To read, and to write what was read."""


class SendRefusal(NamedTuple):
    """Why messages are refused."""

    code: ResponseCode
    remark: str


class OldReads(NamedTuple):
    """Reads of old messages from slaves of a group with a registry (`slaveReadEnable`)."""

    helps: bool
    """Whether this member, which does not serve reads, may answer pulls of old messages."""
    sends_back: bool
    """Whether consumers that pull here should pull from the master."""
    slaves: tuple[int, ...]
    """Broker ids under which slaves are registered that consumers may be sent to."""


class Registered(NamedTuple):
    """How this broker is registered at name servers."""

    broker_id: int | None
    """0 for the master; None: not at present."""
    epoch: int = 0
    """Of two addresses with one broker id, a name server accepts the one with the higher epoch."""
    weight: int | None = None
    """Weight of the broker group from the registry; None: the one of the settings."""
    mode: str = ""
    """Failover mode of the broker group; "": static."""


class Serving(msgspec.Struct, frozen=True):
    """What this broker may do, and why not more."""

    is_master: bool
    """Whether its log is the one that is replicated."""
    epoch: int = 0
    """Epoch of the mastership in effect; 0: none."""
    is_elect: bool = False
    """Whether masters are elected, so that messages wait for every member in sync."""
    read: str | None = None
    """Why pulls and queries of offsets are refused; None: they are not."""
    write: str | None = None
    """The same for sends and changes of topics and groups."""
    commit: str | None = None
    """The same for commits of offsets."""
    sends: SendRefusal | None = None
    """Why messages are refused; None: they are not, as far as the role is concerned."""
    consumers: str | None = None
    """Why consumers may not connect; None: they may."""
    takes_pulled_commits: bool = True
    """Whether offsets that come with pulls are committed."""
    keeps_offsets: bool = True
    """Whether the group's consumers commit their offsets here, so that this broker knows their lag."""
    copies_tables: bool = False
    """Whether this broker asks a master for its tables from time to time: a slave without a registry."""
    waits_for_replicas: bool = False
    """Whether a message is acknowledged only when enough replicas have it."""
    replica_code: ResponseCode | None = ResponseCode.SUCCESS
    """Outcome of replicating a message that is stored now; None if that has to be waited for."""
    copied_to: int = NO_LIMIT
    """Log offset that enough replicas hold."""
    visible_end: int = NO_LIMIT
    """Log offset below which consumers may see messages; what follows may still be truncated."""
    replica_end: int = NO_LIMIT
    """The same for reads from members that do not serve consumers: replica reads, and pulls of old messages."""
    awaits_tail: bool = False
    """Whether the log may lack its end until a slave returns it; an offset behind the end may then be valid."""
    registered: Registered = Registered(None)
    """How it is registered."""
    members: frozenset[int] | None = None
    """Broker ids of the configured members of the group; None: every slave counts."""
    old_reads: OldReads | None = None
    """Reads of old messages from slaves; None: the settings alone decide."""

    def refusal(self, right: Right | None) -> str | None:
        """Return why a request that needs a right may not be answered now; None if it may."""
        if right is None:
            return None
        if right is Right.READ:
            return self.read
        if right is Right.POP:
            return self.read if self.read is not None else self.write
        return self.write if right is Right.WRITE else self.commit

    def is_same_service(self, other: "Serving") -> bool:
        """Whether mastership, rights and registration are the same: features are notified of changes in these."""
        return (
            self.is_master is other.is_master
            and self.epoch == other.epoch
            and self.read == other.read
            and self.write == other.write
            and self.commit == other.commit
            and self.sends == other.sends
            and self.registered == other.registered
        )


NOTHING = Serving(is_master=False)
"""Before the role is known."""
