"""The registry hosted by a name server: sessions on remoting connections, a tree of nodes, a journal.

    request ─► tree.execute ─► response, held back ───────────────────────► connection
                    │             ▲ until the batch with its change is durable
                    └► changes ─► journal.write ─► fdatasync (a job) ─► JobDone

No response is sent, including reads and events, before all changes it rests on are on disk: what a broker has read, it
reads again after a crash. Changes that arrive during an fdatasync share the next one. Only pings are answered at once;
they confirm nothing but the session.

A session belongs to the connection of its last CONNECT; requests on an older connection are answered "over" and not
carried out. A closed connection does not end its sessions: they expire after their timeout without requests.

With a secret (`keyring`) a session requires a proof of it: CONNECT carries one, made for a nonce of its connection. All
other requests on a connection without a proof are refused.

For one machine and for tests: the registry stops with its name server. Use ZooKeeper or etcd for high availability.

Limits: those of the tree; one held EVENTS request per session; after a failed fdatasync nothing is answered until a
restart; while the disk is full changes wait, and are retried every `FULL_RETRY_MS`.
Owner: the name server's node. Source: docs/internals/failover.md, "The registry in a name server".
"""

import logging
from dataclasses import dataclass
from hmac import compare_digest
from typing import NamedTuple

import msgspec

from tandemq.boundary import Disk, Job, JobDone, Now, Turn
from tandemq.codec.proofs import CHALLENGE, PROOF, Keyring, answer_proof, from_text, secret_of, to_text
from tandemq.codec.registry import (
    ALIVE,
    CONNECTED,
    EVENTS,
    OVER,
    ROLES,
    ConnectFields,
    SessionFields,
    decode_operation,
    encode_outcome,
)
from tandemq.codec.remoting.requests import read_fields
from tandemq.coordination.registry.tree import Change
from tandemq.errors import DiskFull, ProtocolError, RemoteError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.nameserver.registry_journal import JOURNAL_BYTES_MAX, Journal

CODES = frozenset(
    {
        RequestCode.TANDEM_REGISTRY_CONNECT,
        RequestCode.TANDEM_REGISTRY_OPERATE,
        RequestCode.TANDEM_REGISTRY_EVENTS,
        RequestCode.TANDEM_REGISTRY_PING,
        RequestCode.TANDEM_REGISTRY_CLOSE,
        RequestCode.TANDEM_REGISTRY_CHALLENGE,
    }
)
CLIENT_CHARACTERS_MAX = 255
FULL_RETRY_MS = 1_000
WAITING_MAX = 10_000
_log = logging.getLogger(__name__)


class HostedResponse(NamedTuple):
    """A response and the connection it is for."""

    link: int
    response: Command


@dataclass(slots=True)
class _Held:
    """A response, and the journal batch that must be durable before it is sent."""

    link: int
    answer: Command
    batch: int


class RegistryHost:
    """The embedded registry as part of a name server's node."""

    def __init__(self, disk: Disk, keyring: Keyring | None = None) -> None:
        """Load the files. `keyring`: sessions have to prove that they know one of its secrets.

        Raises:
            StoreDamaged: a file cannot be read.
            StoreError: the disk failed.
        """
        self._keyring = keyring
        self._nonces: dict[int, bytes] = {}
        """By connection: the nonce for the proof in its next CONNECT."""
        self._proven: set[int] = set()
        """Connections whose peer has proven that it knows a secret."""
        self._journal = Journal(disk)
        self._tree = self._journal.load()
        self._links: dict[int, int] = {}
        """By session: its connection."""
        self._listening: dict[int, Command] = {}
        """By session: its EVENTS request, held until a watch fires."""
        self._fired: dict[int, list[str]] = {}
        self._held: list[_Held] = []
        self._unwritten: list[Change] = []
        self._batch = 1
        """The number of the batch that the next changes belong to."""
        self._safe = 0
        """The last durable batch."""
        self._is_syncing = False
        self._retry_ms: int | None = None
        self.failed: str | None = None
        """Why requests are no longer answered; None while they are."""

    @property
    def session_count(self) -> int:
        """The number of open sessions."""
        return self._tree.session_count

    @property
    def last_session(self) -> int:
        """The id of the newest session; 0 if there was none."""
        return self._tree.last_session

    def deadline_ms(self) -> int | None:
        """When a session expires or a write is retried; None for never."""
        if self.failed is not None:
            return None
        times = (self._tree.deadline_ms(), self._retry_ms)
        return min((time for time in times if time is not None), default=None)

    # Requests.

    def take(self, request: Command, link: int, now: Now) -> Command | None:
        """Carry out a request of CODES. None: its response comes from `answers`, now or later.

        Raises:
            RemoteError: the request is malformed, or the registry has failed.
        """
        if self.failed is not None:
            raise RemoteError(f"the registry takes no requests: {self.failed}", hint="restart the name server")
        if request.is_oneway:
            raise ProtocolError("requests to the registry cannot be one-way")
        if len(self._held) >= WAITING_MAX:
            raise RemoteError(f"{WAITING_MAX} responses of the registry wait for the disk")
        if request.code == RequestCode.TANDEM_REGISTRY_CHALLENGE:
            return self._challenge(request, link)
        if request.code == RequestCode.TANDEM_REGISTRY_CONNECT:
            self._connect(request, link, now)
            return None
        if self._keyring is not None and link not in self._proven:
            raise _unproven("a request on a connection without a proof")
        if request.code == RequestCode.TANDEM_REGISTRY_OPERATE:
            session, operation = decode_operation(request)
        else:
            session, operation = read_fields(SessionFields, request.fields).session_id, None
        if self._links.get(session) != link or not self._tree.touch(session, now.mono_ms):
            self._hold(link, _response(request, OVER))
        elif operation is not None:
            outcome = self._tree.execute(session, operation)
            self._hold(link, encode_outcome(request, outcome))
        elif request.code == RequestCode.TANDEM_REGISTRY_PING:
            self._held.append(_Held(link, _response(request, ALIVE), 0))
        elif request.code == RequestCode.TANDEM_REGISTRY_EVENTS:
            self._listening[session] = request
        else:
            self._tree.close_session(session)
            self._forget(session)
            self._hold(link, _response(request, OVER))
        self._answer_events()
        return None

    def _challenge(self, request: Command, link: int) -> Command:
        if self._keyring is None:
            raise RemoteError("this name server has no haSecretFile")
        nonce = self._nonces[link] = self._keyring.nonce()
        return request.answer(ResponseCode.SUCCESS, fields={CHALLENGE: to_text(nonce)})

    def _secret_of(self, request: Command, link: int) -> bytes | None:
        """Return the secret that a CONNECT proves, with this connection's nonce; None if no proof is required.

        Raises:
            RemoteError: there is no valid proof.
        """
        if self._keyring is None:
            return None
        nonce = self._nonces.pop(link, None)
        is_fresh = nonce is not None and compare_digest(from_text(request.fields.get(CHALLENGE, "")) or b"", nonce)
        secret = secret_of(ROLES, self._keyring, request) if is_fresh else None
        if secret is None:
            raise _unproven("no proof" if PROOF not in request.fields else "a wrong proof")
        self._proven.add(link)
        return secret

    def _connect(self, request: Command, link: int, now: Now) -> None:
        secret = self._secret_of(request, link)
        asked = read_fields(ConnectFields, request.fields)
        if not 1 <= len(asked.client) <= CLIENT_CHARACTERS_MAX or not asked.client.isprintable():
            raise ProtocolError(f"client has 1 to {CLIENT_CHARACTERS_MAX} printable characters")
        session = asked.session_id
        if self._tree.resume_session(session, asked.client, now.mono_ms):
            self._listening.pop(session, None)
            self._fired.pop(session, None)
        else:
            session = self._tree.open_session(asked.timeout_ms, asked.client, now.mono_ms, before=session)
            _log.info("registry session opened session=%d client=%s", session, asked.client)
        self._links[session] = link
        timeout_ms = self._tree.timeout_ms(session)
        answer = _response(request, CONNECTED, sessionId=str(session), timeoutMs=str(timeout_ms))
        if secret is not None:
            answer.fields = {**answer.fields, PROOF: to_text(answer_proof(ROLES, secret, request, answer))}
        self._hold(link, answer)

    def link_closed(self, link: int) -> None:
        """A connection was closed; its sessions wait for a new one."""
        for session in [session for session, on in self._links.items() if on == link]:
            del self._links[session]
            self._listening.pop(session, None)
        self._held = [each for each in self._held if each.link != link]
        self._nonces.pop(link, None)
        self._proven.discard(link)

    def _forget(self, session: int) -> None:
        self._links.pop(session, None)
        self._fired.pop(session, None)
        self._listening.pop(session, None)

    # Watches.

    def _answer_events(self) -> None:
        for session, path in self._tree.take_fired():
            if session in self._links:
                self._fired.setdefault(session, []).append(path)
        for session in [session for session in self._fired if session in self._listening]:
            paths = list(dict.fromkeys(self._fired.pop(session)))
            request = self._listening.pop(session)
            answer = _response(request, EVENTS)
            answer.body = msgspec.json.encode(paths)
            self._hold(self._links[session], answer)

    # Time and the disk.

    def tick(self, turn: Turn, now: Now) -> None:
        """End expired sessions; write the changes, unless a batch is being flushed."""
        if self.failed is not None:
            return
        for session in self._tree.expire(now.mono_ms):
            self._end(session)
        self._answer_events()
        self._unwritten += self._tree.take_changes()
        if self._unwritten and not self._is_syncing and (self._retry_ms is None or now.mono_ms >= self._retry_ms):
            self._write(turn, now)

    def _end(self, session: int) -> None:
        """A session expired: its held EVENTS request is answered "over"."""
        request, link = self._listening.get(session), self._links.get(session)
        if request is not None and link is not None:
            self._hold(link, _response(request, OVER))
        self._forget(session)

    def _write(self, turn: Turn, now: Now) -> None:
        try:
            if self._journal.end > JOURNAL_BYTES_MAX:
                self._journal.fold(self._tree)
                self._safe, self._batch = self._batch, self._batch + 1
                self._unwritten.clear()
                return
            file = self._journal.write(self._unwritten)
        except DiskFull as error:
            if self._retry_ms is None:
                _log.error("registry: the disk is full, changes are retried: %s", error)
            self._retry_ms = now.mono_ms + FULL_RETRY_MS
            return
        except StoreError as error:
            self._fail(error)
            return
        self._retry_ms = None
        self._unwritten.clear()
        self._batch += 1
        self._is_syncing = True
        turn.jobs.append(Job("registry fdatasync", file.datasync, self._synced, [file]))

    def _synced(self, done: JobDone, _turn: Turn, _now: Now) -> None:
        self._is_syncing = False
        if done.error is None:
            self._safe = self._batch - 1
        else:
            self._fail(done.error)

    def _fail(self, error: Exception) -> None:
        """Stop answering: it is unknown which changes are on disk."""
        _log.error("registry failed, no request is answered until a restart: %s", error)
        self.failed = str(error)
        self._held.clear()
        self._listening.clear()

    # Answers.

    def _hold(self, link: int, answer: Command) -> None:
        """Queue a response behind all changes and responses so far."""
        self._unwritten += self._tree.take_changes()
        self._held.append(_Held(link, answer, self._batch if self._unwritten else self._batch - 1))

    def answers(self) -> list[HostedResponse]:
        """Return the responses that may be sent now, in order."""
        ready = [HostedResponse(each.link, each.answer) for each in self._held if each.batch <= self._safe]
        if ready:
            self._held = [each for each in self._held if each.batch > self._safe]
        return ready

    def close(self) -> None:
        """Close the files."""
        self._journal.close()


def _unproven(what: str) -> RemoteError:
    return RemoteError(
        f"the registry of this name server requires a proof of its haSecretFile, and got {what}",
        hint="give the same file to brokers as haSecretFile, and to tandemq ha as --secret-file",
        code=ResponseCode.NO_PERMISSION,
    )


def _response(request: Command, outcome: str, **fields: str) -> Command:
    return request.answer(ResponseCode.SUCCESS, fields={"outcome": outcome, **fields})
