"""The registry inside a name server: sessions on remoting links, a tree, a journal.

    request ─► tree.execute ─► answer, waits ─────────────────────────────► link
                    │             ▲ until the batch with its change is safe
                    └► changes ─► journal.write ─► fdatasync (a job) ─► JobDone

Nothing is told to anybody, reads and events included, before everything it rests on is on disk: what a broker has
seen, it sees again after a crash. What arrives while one fdatasync runs shares the next. Only pings are answered at
once; they tell of nothing but the session's life.

A session belongs to the link it was last connected on; what still arrives on an older link is answered "over" and not
carried out. A link that closes leaves its sessions alone: they end when nothing was heard for their timeout.

With a secret (`keyring`) nobody has a session, and so nobody reads or writes anything, without a proof of it: CONNECT
carries one, made for a nonce of its connection. Everything else on a connection that has not proven it is refused.

For one machine, and for tests: when this name server stops, the registry does. Whoever needs more uses ZooKeeper.

Limits: those of the tree; one held EVENTS request per session; after a failed fdatasync nothing is answered until a
restart; while the disk is full changes wait, and are tried again every `FULL_RETRY_MS`.
Owner: the name server's node. Source: docs/failover.md, "The registry in a name server".
"""

import logging
from dataclasses import dataclass
from hmac import compare_digest

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


@dataclass(slots=True)
class _Held:
    """An answer, and the batch that must be safe before it leaves."""

    link: int
    answer: Command
    batch: int


class RegistryHost:
    """The embedded registry as part of a name server's node."""

    def __init__(self, disk: Disk, keyring: Keyring | None = None) -> None:
        """Load what is on disk. `keyring`: sessions prove that they know one of its secrets.

        Raises:
            StoreDamaged: it cannot be read.
            StoreError: the disk failed.
        """
        self._keyring = keyring
        self._nonces: dict[int, bytes] = {}
        """By link: the nonce that its next CONNECT has to be proven with."""
        self._proven: set[int] = set()
        """Links that have proven that they know a secret."""
        self._journal = Journal(disk)
        self._tree = self._journal.load()
        self._links: dict[int, int] = {}
        """By session: the link it is on."""
        self._listening: dict[int, Command] = {}
        """By session: its EVENTS request, waiting for a watch to fire."""
        self._fired: dict[int, list[str]] = {}
        self._held: list[_Held] = []
        self._unwritten: list[Change] = []
        self._batch = 1
        """The batch that changes made now will be in."""
        self._safe = 0
        """The last batch that is safe."""
        self._syncing: Job | None = None
        self._retry_ms: int | None = None
        self.failed: str | None = None
        """Why nothing is answered any more."""

    @property
    def session_count(self) -> int:
        """Living sessions."""
        return self._tree.session_count

    @property
    def last_session(self) -> int:
        """Id of the session begun last; 0 if there was none."""
        return self._tree.last_session

    def deadline_ms(self) -> int | None:
        """When a session expires or a write is tried again; None for never."""
        if self.failed is not None:
            return None
        times = (self._tree.deadline_ms(), self._retry_ms)
        return min((time for time in times if time is not None), default=None)

    # Requests.

    def take(self, request: Command, link: int, now: Now) -> Command | None:
        """Take one request of CODES. None: its answer comes from `answers`, now or later.

        Raises:
            RemoteError: the request is malformed, or the registry cannot answer any more.
        """
        if self.failed is not None:
            raise RemoteError(f"the registry takes no requests: {self.failed}", hint="restart the name server")
        if request.is_oneway:
            raise ProtocolError("the registry's requests are not one-way")
        if len(self._held) >= WAITING_MAX:
            raise RemoteError(f"{WAITING_MAX} answers of the registry wait for the disk")
        if request.code == RequestCode.TANDEM_REGISTRY_CHALLENGE:
            return self._challenge(request, link)
        if request.code == RequestCode.TANDEM_REGISTRY_CONNECT:
            self._connect(request, link, now)
            return None
        if self._keyring is not None and link not in self._proven:
            raise _unproven("a request without a session that was proven")
        if request.code == RequestCode.TANDEM_REGISTRY_OPERATE:
            session, operation = decode_operation(request)
        else:
            session, operation = read_fields(SessionFields, request.fields).session_id, None
        if self._links.get(session) != link or not self._tree.touch(session, now.mono_ms):
            self._hold(link, _said(request, OVER))
        elif operation is not None:
            outcome = self._tree.execute(session, operation)
            self._hold(link, encode_outcome(request, outcome))
        elif request.code == RequestCode.TANDEM_REGISTRY_PING:
            self._held.append(_Held(link, _said(request, ALIVE), 0))
        elif request.code == RequestCode.TANDEM_REGISTRY_EVENTS:
            self._listening[session] = request
        else:
            self._tree.close_session(session)
            self._forget(session)
            self._hold(link, _said(request, OVER))
        self._tell_fired()
        return None

    def _challenge(self, request: Command, link: int) -> Command:
        if self._keyring is None:
            raise RemoteError("this name server has no haSecretFile")
        nonce = self._nonces[link] = self._keyring.nonce()
        return request.answer(ResponseCode.SUCCESS, fields={CHALLENGE: to_text(nonce)})

    def _secret_of(self, request: Command, link: int) -> bytes | None:
        """The secret that a CONNECT is proven with, for this connection and now; None: no proof is asked for.

        Raises:
            RemoteError: it is not proven.
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
        answer = _said(request, CONNECTED, sessionId=str(session), timeoutMs=str(timeout_ms))
        if secret is not None:
            answer.fields = {**answer.fields, PROOF: to_text(answer_proof(ROLES, secret, request, answer))}
        self._hold(link, answer)

    def link_closed(self, link: int) -> None:
        """A link is gone; sessions that were on it wait for another."""
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

    def _tell_fired(self) -> None:
        for session, path in self._tree.take_fired():
            if session in self._links:
                self._fired.setdefault(session, []).append(path)
        for session in [session for session in self._fired if session in self._listening]:
            paths = list(dict.fromkeys(self._fired.pop(session)))
            request = self._listening.pop(session)
            answer = _said(request, EVENTS)
            answer.body = msgspec.json.encode(paths)
            self._hold(self._links[session], answer)

    # Time and the disk.

    def tick(self, turn: Turn, now: Now) -> None:
        """End silent sessions; write what changed, unless a batch is on its way to the disk."""
        if self.failed is not None:
            return
        for session in self._tree.expire(now.mono_ms):
            self._end(session)
        self._tell_fired()
        self._unwritten += self._tree.take_changes()
        if self._unwritten and self._syncing is None and (self._retry_ms is None or now.mono_ms >= self._retry_ms):
            self._write(turn, now)

    def _end(self, session: int) -> None:
        """A session expired: its owner, if it listens, hears of it with the answer it waits for."""
        request, link = self._listening.get(session), self._links.get(session)
        if request is not None and link is not None:
            self._hold(link, _said(request, OVER))
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
                _log.error("registry: changes wait for room on the disk: %s", error)
            self._retry_ms = now.mono_ms + FULL_RETRY_MS
            return
        except StoreError as error:
            self._fail(error)
            return
        self._retry_ms = None
        self._unwritten.clear()
        self._batch += 1
        self._syncing = Job("registry fdatasync", file.datasync, syncs=[file])
        turn.jobs.append(self._syncing)

    def job_done(self, done: JobDone) -> None:
        """An fdatasync ended."""
        if done.job is not self._syncing:
            return
        self._syncing = None
        if done.error is None:
            self._safe = self._batch - 1
        else:
            self._fail(done.error)

    def _fail(self, error: Exception) -> None:
        """Nobody knows what is on disk: nothing that may not be there is told to anybody."""
        _log.error("registry: nothing is answered any more: %s", error)
        self.failed = str(error)
        self._held.clear()
        self._listening.clear()

    # Answers.

    def _hold(self, link: int, answer: Command) -> None:
        """Queue an answer behind everything that happened so far, and was told to those who asked before."""
        self._unwritten += self._tree.take_changes()
        self._held.append(_Held(link, answer, self._batch if self._unwritten else self._batch - 1))

    def answers(self) -> list[tuple[int, Command]]:
        """What may leave now, in order: (link, answer)."""
        ready = [(each.link, each.answer) for each in self._held if each.batch <= self._safe]
        if ready:
            self._held = [each for each in self._held if each.batch > self._safe]
        return ready

    def close(self) -> None:
        """Give the files back."""
        self._journal.close()


def _unproven(what: str) -> RemoteError:
    return RemoteError(
        f"the registry of this name server asks for a proof of its haSecretFile, and got {what}",
        hint="give the same file to brokers as haSecretFile, and to tandemq ha as --secret-file",
        code=ResponseCode.NO_PERMISSION,
    )


def _said(request: Command, outcome: str, **fields: str) -> Command:
    return request.answer(ResponseCode.SUCCESS, fields={"outcome": outcome, **fields})
