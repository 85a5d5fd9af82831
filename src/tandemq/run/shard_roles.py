"""Roles of a machine's shards that move together after a failover: `shardRolesTogether`.

    a shard of this machine took over from a failed master
      ─► each other shard that is a slave in sync asks its master to switch to this machine
      ─► until all are masters here, a shard was asked TRIES_MAX times, or WISH_MS have passed

The lowest shard that took over decides: if two machines have taken over one shard each from a machine that is gone, the
machine of the lower one gets both. A shard that has followed once is not asked again for the same failover, so that an
operator can move it away. Source: docs/guides/sizing.md, "Shards".
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemq.client.connection import BlockingConnection
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.signature import member_credentials
from tandemq.config.access import inner_user
from tandemq.config.settings import BrokerConfig
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.secret import SecretFile
from tandemq.run.tls import connecting_context

log = logging.getLogger(__name__)
POLL_S = 1.0
WISH_MS = 300_000
"""How long after a takeover the other shards may follow."""
TRIES_MAX = 5
"""How often the master of a shard is asked."""
WAIT_S = 2.0
"""Wait after a refusal, doubled each time."""
STATUS_S = 2.0
FILES_S = 60.0
"""How often files of TLS are read."""
SWITCH_S = 20.0
Status = Mapping[str, Any]
"""The status of a broker, as TANDEM_FAILOVER_STATUS returns it; empty if it does not answer."""


class Move(NamedTuple):
    """A role that is to move to this machine."""

    shard: int
    """Number of the shard."""
    address: str
    """Of its present master."""
    lead: int
    """Number of the shard that took over."""


@dataclass(slots=True)
class _Tries:
    """How often a shard's master was asked."""

    count: int = 0
    next_s: float = 0.0
    is_over: bool = False
    """It has followed, or was given up."""
    waits: str = ""
    """Why it has to wait, as it was logged."""


@dataclass(slots=True)
class RolesTogether:
    """What to move, from the statuses of all shards of this machine."""

    broker_id: int
    names: Sequence[str]
    _failover: tuple[int, int] = (-1, 0)
    """Shard that took over, and its epoch."""
    _tries: dict[int, _Tries] = field(default_factory=dict)

    def moves(self, statuses: Sequence[Status], now_s: float) -> list[Move]:
        """Return what to move now; `now_s`: monotonic."""
        lead = next((number for number, status in enumerate(statuses) if took_over(status)), None)
        if lead is None:
            self._failover, self._tries = (-1, 0), {}
            return []
        failover = (lead, int(statuses[lead]["epoch"]))
        if failover != self._failover:
            self._failover, self._tries = failover, {}
        found = []
        for number, status in enumerate(statuses):
            tries = self._tries.setdefault(number, _Tries())
            if status.get("isMaster") and status.get("stage") == MemberStage.SERVING.value:
                tries.is_over = True
            if tries.is_over or now_s < tries.next_s or status.get("stage") != MemberStage.SLAVE.value:
                continue
            address = self._master_of(status)
            waits = self._waits(status, address)
            if waits and waits != tries.waits:
                log.info("shards: %s does not follow %s yet: %s", self.names[number], self.names[lead], waits)
            tries.waits = waits
            if not waits:
                found.append(Move(number, address, lead))
        return found

    def _master_of(self, status: Status) -> str:
        members = {member["brokerId"]: member["address"] for member in status.get("members", ())}
        return str(members.get(status.get("master"), ""))

    def _waits(self, status: Status, address: str) -> str:
        """Return why the role cannot move now; "" if it can."""
        if status.get("mode") != Mode.ELECT.value:
            return "its group is not in mode elect"
        if self.broker_id not in status.get("inSync", ()):
            return f"broker {self.broker_id} is not in sync"
        return "" if address else f"its master, broker {status.get('master')}, is not live"

    def moved(self, move: Move) -> None:
        """Note that a role has moved."""
        self._tries[move.shard].is_over = True

    def refused(self, move: Move, why: str, now_s: float) -> None:
        """Note that a role did not move, and when it is tried again."""
        tries = self._tries[move.shard]
        tries.count += 1
        wait_s = WAIT_S * 2 ** (tries.count - 1)
        tries.next_s, tries.is_over = now_s + wait_s, tries.count >= TRIES_MAX
        after = "it stays there" if tries.is_over else f"tried again after {wait_s:g} s"
        log.warning("shards: %s does not follow %s: %s; %s", *self._names(move), why, after)

    def yields(self, move: Move, now_s: float) -> None:
        """Note that the machine of the present master has taken over a lower shard, so that roles move there."""
        tries = self._tries[move.shard]
        if not tries.waits:
            log.info("shards: %s does not follow %s: its machine has taken over, too", *self._names(move))
        tries.waits, tries.next_s = "yields", now_s + WAIT_S

    def _names(self, move: Move) -> tuple[str, str]:
        return self.names[move.shard], self.names[move.lead]


def took_over(status: Status) -> bool:
    """Return whether a broker serves as a master that has lately taken over from a failed one."""
    took_ms_ago = status.get("tookMsAgo")
    return took_ms_ago is not None and took_ms_ago < WISH_MS and status.get("stage") == MemberStage.SERVING.value


class RoleMover:
    """The thread that asks the shards, and moves their roles."""

    def __init__(self, config: BrokerConfig, names: Sequence[str], addresses: Callable[[], Sequence[str]]) -> None:
        """Start nothing yet.

        Args:
            config: the settings of all shards.
            names: of the shards.
            addresses: returns those of the shards, "" for one that does not run.

        Raises:
            ConfigError: a file of TLS, or of the secret, cannot be used.
        """
        self._roles = RolesTogether(config.broker_id, names)
        self._why = f"to have all shards of {config.broker_name} on one machine"
        self._addresses = addresses
        self._inner = inner_user(config)
        self._secret = SecretFile(config.ha_secret_file) if config.ha_secret_file else None
        self._config = config
        self._context = connecting_context(config)
        self._read_s = time.monotonic()
        """When the files of TLS were read."""
        self._silent: dict[str, str] = {}
        """Why a broker does not tell its status, by address, as it was logged."""
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shard-roles", daemon=True)

    def start(self) -> None:
        """Begin to watch the shards."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no other move."""
        self._is_stopping.set()

    def _run(self) -> None:
        while not self._is_stopping.wait(POLL_S):
            statuses = [self._status(address) for address in self._addresses()]
            for move in self._roles.moves(statuses, time.monotonic()):
                if not self._is_stopping.is_set():
                    self._move(move)

    def _move(self, move: Move) -> None:
        master = self._status(move.address)
        if move.shard < move.lead and took_over(master):
            self._roles.yields(move, time.monotonic())
            return
        fields = {"target": str(self._roles.broker_id), "why": self._why}
        try:
            answer = self._ask(move.address, Command(RequestCode.TANDEM_SWITCH, fields=fields), SWITCH_S)
        except TandemError as error:
            self._roles.refused(move, str(error.args[0]), time.monotonic())
            return
        if answer.code != ResponseCode.SUCCESS:
            self._roles.refused(move, answer.remark or f"refused with code {answer.code}", time.monotonic())
            return
        self._roles.moved(move)
        names = self._roles.names
        log.warning(
            "shards: %s follows %s, which took over here: %s", names[move.shard], names[move.lead], answer.remark
        )

    def _status(self, address: str) -> Status:
        if not address:
            return {}
        try:
            answer = self._ask(address, Command(RequestCode.TANDEM_FAILOVER_STATUS), STATUS_S)
        except TandemError as error:
            found, why = None, str(error.args[0])
        else:
            found = loads(answer.body) if answer.code == ResponseCode.SUCCESS else None
            why = answer.remark or f"code {answer.code}"
        if isinstance(found, dict):
            self._silent.pop(address, None)
            return found
        if self._silent.get(address) != why:
            self._silent[address] = why
            log.warning("shards: %s does not report its role: %s", address, why)
        return {}

    def _ask(self, address: str, command: Command, seconds: float) -> Command:
        if self._context is not None and time.monotonic() - self._read_s > FILES_S:
            self._read_s = time.monotonic()
            self._context = connecting_context(self._config)
        with BlockingConnection(
            address, seconds=seconds, tls=self._context, credentials=self._credentials()
        ) as connection:
            return connection.request(command)

    def _credentials(self) -> Credentials | None:
        """Return the user as which the shards sign requests to other brokers."""
        if self._inner is not None:
            return Credentials(*self._inner)
        return None if self._secret is None else member_credentials(self._secret.secrets()[0])
