"""What clients may do at a member of a group with a registry, as of now: read, write, commit offsets."""

from typing import NamedTuple

from tandemq.boundary import Turn
from tandemq.broker.context import CurrentConfig
from tandemq.broker.failover.offset_barrier import OffsetBarrier
from tandemq.broker.pull.processor import PullPath
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.clients import Clients
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode

REASON = "failover"
TOO_FEW = "in sync"
OWN_LANGUAGE = "PYTHON"
"""Language in the heartbeats of TandemQ's client."""
UNKNOWN = "the group's configuration has not been read from the registry yet"
_READ = frozenset(
    {
        Code.QUERY_CONSUMER_OFFSET,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.LOCK_BATCH_MQ,
    }
)
_COMMIT = frozenset({Code.UPDATE_CONSUMER_OFFSET, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET})
_WRITE = frozenset(
    {
        Code.CONSUMER_SEND_MSG_BACK,
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_STATIC_TOPIC,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP,
    }
)


class AccessRights(NamedTuple):
    """What a member may do for clients."""

    read: bool
    write: bool
    commit: bool


NOTHING = AccessRights(read=False, write=False, commit=False)


class ClientAccess:
    """Opens and closes the send and pull paths, and refuses other requests by code."""

    def __init__(
        self, send: SendPath, pull: PullPath, barrier: OffsetBarrier, clients: Clients, current: CurrentConfig
    ) -> None:
        """Refuse everything until the group's configuration is known."""
        self._send = send
        self._pull = pull
        self._barrier = barrier
        self._clients = clients
        self._current = current
        self.may = NOTHING
        self._why = UNKNOWN
        self._is_short = False
        pull.takes_commits = False
        pull.refusal = UNKNOWN
        send.refuse(REASON, UNKNOWN, ResponseCode.NO_PERMISSION)

    def permit(self, may: AccessRights, why: str, turn: Turn, *, is_reader: bool) -> None:
        """Apply permissions.

        Args:
            may: what is allowed from now on.
            why: the reason for what is refused, "" if nothing is.
            turn: takes answers to waiting requests.
            is_reader: whether this is a slave that may serve reads; when it stops, consumers are disconnected.
        """
        if may == self.may and why == self._why:
            return
        could_read, could_commit, self.may, self._why = self.may.read, self.may.commit, may, why
        if is_reader and could_commit and not may.commit:
            self._disconnect_consumers(why, turn)
        self._pull.takes_commits = may.commit
        if could_read and not may.read:
            self._pull.refuse(why, turn)
        if not may.commit:
            self._barrier.refuse(why, turn)
        self._pull.refusal = None if may.read else why
        if may.write:
            self._send.admit(REASON)
        else:
            self._send.refuse(REASON, why, ResponseCode.NO_PERMISSION)

    def _disconnect_consumers(self, why: str, turn: Turn) -> None:
        """Close the connections of consumers, after their answers. TandemQ's client changes the broker by itself."""
        links = {
            member.link
            for group in self._clients.consumers.values()
            for member in group.members.values()
            if member.language != OWN_LANGUAGE
        }
        turn.closes += [(link, why) for link in sorted(links)]

    def require_in_sync(self, count: int, *, is_elect: bool) -> None:
        """Refuse messages while fewer members are in sync than `minInSyncReplicas`."""
        need = self._current.config.min_in_sync
        is_short = is_elect and self.may.write and count < need
        if is_short == self._is_short:
            return
        self._is_short = is_short
        if is_short:
            self._send.refuse(TOO_FEW, f"{count} members are in sync, {need} are needed")
        else:
            self._send.admit(TOO_FEW)

    def refusal(self, code: int) -> str | None:
        """Return why a request with this code may not be answered now; None if it may."""
        is_refused = (
            (not self.may.read and code in _READ)
            or (not self.may.commit and code in _COMMIT)
            or (not self.may.write and code in _WRITE)
        )
        return self._why if is_refused else None

    def leave_to_settings(self, *, is_master: bool) -> None:
        """Open both paths: mode `static` is configured."""
        self._send.admit(REASON)
        self._pull.refusal = None
        self._pull.takes_commits = is_master
        self._pull.slave_reads.choice = None
