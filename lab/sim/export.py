"""The history of a seed for the independent judge, `python -m judge`: what clients saw, then what the logs hold.

    expected state (attempts, deliveries, transactions, recalls) ─┐
    losses of bytes that a level does not promise to survive ─────┼─► sorted by virtual time ─► HISTORY.jsonl
    records of every log, as it is at the end ────────────────────┘

Times are virtual milliseconds. Queues of other topics than those of the workload are exported only as places of
acknowledgements. Pops are those of seeds in which nothing may give a message early, late or again. Committed offsets
are those of consumers that send frames; in seeds whose groups all elect they must not go back.
"""

from itertools import count
from typing import IO, Any, NamedTuple

from judge.writing import HistoryWriter, hash_of
from lab.sim.checkers.final import DELAYS_US, PRECISION_MS
from lab.sim.checkers.groups import GroupChecks
from lab.sim.checkers.logs import LoggedMessage, read_log, walk
from lab.sim.checkers.model import POP_GROUP, TOPICS, Attempt, SentMessage
from lab.sim.checkers.pops import Hold, is_stored_once
from lab.sim.history import History
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.groups import GroupCluster, mode_of
from lab.sim.world.plan import GroupPlan
from lab.sim.world.world import MS
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import ResponseCode
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC
from tandemq.model.transactions import TransactionState

_CLOCKS_MS = 8_000.0
"""How far apart clocks of members with a registry may be."""
_OUTCOME, _FAULT, _DELIVERY, _BEGIN = range(4)
"""Order of what happens at the same time."""
_TORN = ("failing", "disk-full", "killed-at", "power-lost-at")
"""Faults after which a refused message may be stored."""


class _Event(NamedTuple):
    at_us: int
    rank: int
    number: int
    kind: str
    """"invoke", "ok", "fail" or "note"."""
    process: str
    f: str
    op: str
    fields: dict[str, Any]


class Export:
    """Writes the history of one run, after its end."""

    def __init__(self, run: History, cluster: Cluster) -> None:
        """`cluster`: that of the run."""
        self._run = run
        self._expected = run.expected
        self._cluster = cluster
        self._groups: dict[str, GroupPlan] = {group.name: group for group in cluster.plan.groups}
        self._events: list[_Event] = []
        self._has_registry = isinstance(cluster, GroupCluster)
        self._has_pops = self._are_pops_final()
        self._given_up: set[str] = set()
        """Transactions that brokers gave up after as many checks as configured."""

    def write(self, file: IO[str]) -> None:
        """Write the history."""
        world = self._run.world
        logs = {host.name: self._log_of(host) for host in self._cluster.hosts if host.broker is not None}
        for found, _ in logs.values():
            self._given_up |= {each.key for each in found if each.topic == CHECK_MAX_TIME_TOPIC}
        self._add_sends()
        self._add_transactions()
        self._add_recalls()
        self._add_deliveries()
        self._add_offsets()
        if self._has_pops:
            self._add_pops()
        self._add_losses()
        writer = HistoryWriter(file, lambda: world.now_us / MS, run=f"seed {world.seed}", promises=self._promises())
        ops: dict[str, int] = {}
        for event in sorted(self._events, key=lambda event: event[:3]):
            at_ms = event.at_us / MS
            if event.kind == "note":
                writer.note(event.process, event.f, t=at_ms, **event.fields)
            elif event.kind == "invoke":
                ops[event.op] = writer.invoke(event.process, event.f, t=at_ms, **event.fields)
            else:
                writer.end(event.process, event.f, ops.pop(event.op), event.kind, t=at_ms, **event.fields)
        for host in self._cluster.hosts:
            if host.broker is not None:
                self._write_log(writer, host, *logs[host.name])
        if self._run.is_settled:
            writer.note("simulation", "settled")

    def _promises(self) -> dict[str, Any]:
        hosts: list[Host] = self._cluster.hosts
        ahead_ms = sum(max(0, ms) for host in hosts for _, ms in host.machine.jumps)
        clocks_ms = _CLOCKS_MS if self._has_registry else 0.0
        is_quiet = not any(host.kills or host.losses_us or host.flips for host in hosts)
        return {
            "kept": ["SEND_OK", "STORED"],
            "order": "realtime",
            "early_ms": 2.0 + ahead_ms + clocks_ms,
            "recall_ms": 2.0 + ahead_ms + clocks_ms,
            "repeated_delays": not is_quiet,
            "offsets": "monotonic" if self._keeps_offsets() else "any",
            "pop_slack_ms": _CLOCKS_MS if self._has_registry else 0.0,
        }

    def _add(self, at_us: int, rank: int, kind: str, process: str, f: str, op: str = "", **fields: Any) -> None:
        self._events.append(_Event(at_us, rank, len(self._events), kind, process, f, op, fields))

    # What clients saw.

    def _add_sends(self) -> None:
        has_torn = any(kind.startswith(_TORN) for kind in self._run.world.faults)
        for attempt in self._expected.attempts:
            for index, message in enumerate(attempt.messages):
                if message.topic not in TOPICS:
                    continue
                process, op = message.producer, f"{attempt.number}.{index}"
                self._add(attempt.sent_us, _BEGIN, "invoke", process, "send", op, **self._sent(message))
                if attempt.is_stored:
                    topic, queue_id = message.first_topic, message.first_queue(attempt.queue_id)
                    fields: dict[str, Any] = {
                        "status": self._status(attempt, message),
                        "q": f"{topic}/{attempt.group}/{queue_id}",
                        "offset": attempt.queue_offset + index,
                    }
                    self._add(attempt.answered_us, _OUTCOME, "ok", process, "send", op, **fields)
                elif attempt.code is not None:
                    outcome = "unknown" if has_torn else "fail"
                    self._add(attempt.answered_us, _OUTCOME, outcome, process, "send", op)

    def _sent(self, message: SentMessage) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": message.key, "topic": message.topic, "hash": hash_of(message.body)}
        if message.is_half:
            fields["tx"] = True
        if message.timer_ms:
            fields["due"] = (min(attempt.sent_us for attempt in message.attempts) + message.timer_ms * MS) / MS
        elif message.delay_level:
            fields["delay_ms"] = DELAYS_US[message.delay_level - 1] / MS
        return fields

    def _status(self, attempt: Attempt, message: SentMessage) -> str:
        """Return what the response promises: SEND_OK, STORED (for as long as the master loses nothing), or neither."""
        assert attempt.code is not None, "it was answered"
        if message.key in self._given_up or not attempt.waits or self._may_wait(message):
            return "NOT_KEPT"
        if attempt.code == ResponseCode.SUCCESS:
            return "SEND_OK"
        if message.is_half or (self._has_registry and mode_of(self._groups[attempt.group]) is Mode.ELECT):
            return ResponseCode(attempt.code).name
        return "STORED"

    def _may_wait(self, message: SentMessage) -> bool:
        """Return whether a timed message may rightly wait at the end: also where a clock went back."""
        if not message.timer_ms:
            return False
        last_us = max(attempt.sent_us for attempt in message.attempts)
        due_us = last_us + message.timer_ms * MS + 2 * PRECISION_MS * MS
        return due_us > self._run.world.now_us or any(host.machine.jumps for host in self._cluster.hosts)

    def _add_transactions(self) -> None:
        """Add the decisions of producers."""
        for message in self._expected.messages.values():
            if not message.is_half or message.outcome in (None, TransactionState.UNKNOWN) or not message.attempts:
                continue
            outcome = "commit" if message.outcome is TransactionState.COMMIT else "rollback"
            op = f"end {message.key}"
            at_us, fields = message.decided_us, {"id": message.key, "outcome": outcome}
            self._add(at_us, _BEGIN, "invoke", message.producer, "end", op, **fields)

    def _add_recalls(self) -> None:
        for key, at_us in self._expected.recall_requests.items():
            producer = self._expected.messages[key].producer
            self._add(at_us, _BEGIN, "invoke", producer, "recall", f"recall {key}", id=key)
        confirmed = {recall.key: recall.confirmed_us for recall in reversed(self._expected.recalls)}
        for key, at_us in confirmed.items():
            message = self._expected.messages[key]
            if len(message.attempts) == 1:  # of several copies only one is named by a recall
                self._add(at_us, _OUTCOME, "ok", message.producer, "recall", f"recall {key}")

    def _add_deliveries(self) -> None:
        for given in self._expected.given:
            message = self._expected.messages[given.key]
            is_pop = self._has_pops and given.consumer_group == POP_GROUP
            if message.topic in TOPICS and not is_pop:
                fields: dict[str, Any] = {
                    "group": given.consumer_group,
                    "q": f"{given.topic}/{given.group}/{given.queue_id}",
                    "messages": [[given.queue_offset, given.key]],
                    "partial": True,
                    "unordered": True,
                }
                self._add(given.at_us, _DELIVERY, "note", given.consumer_group, "poll", **fields)

    def _keeps_offsets(self) -> bool:
        """Return whether committed offsets never go back but by losses: members in elect that read no older tables."""
        is_elect = self._has_registry and all(mode_of(group) is Mode.ELECT for group in self._groups.values())
        return is_elect and not any(host.flips for host in self._cluster.hosts)

    def _add_offsets(self) -> None:
        for event in self._expected.offset_events:
            queue = f"{event.queue.topic}/{event.queue.group}/{event.queue.queue_id}"
            place: dict[str, Any] = {"group": event.consumer_group, "q": queue}
            is_commit = event.what in ("commit", "committed")
            f, op = "commit" if is_commit else "offset", f"offset {event.number}"
            if event.what in ("commit", "asked"):
                fields = place | {"offset": event.offset} if is_commit else place
                self._add(event.at_us, _BEGIN, "invoke", event.process, f, op, **fields)
            else:
                fields = {} if is_commit else {"offset": event.offset}
                self._add(event.at_us, _OUTCOME, "ok", event.process, f, op, **fields)

    def _are_pops_final(self) -> bool:
        """Return whether the promises of pops hold without exceptions: see `checkers.pops`."""
        hosts: list[Host] = self._cluster.hosts
        if any(kind.startswith(_TORN) for kind in self._run.world.faults):
            return False
        if any(host.losses_us or host.flips or host.machine.jumps for host in hosts):
            return False
        if isinstance(self._run.checks, GroupChecks) and self._run.checks.accepted_us:
            return False
        return not self._has_registry or all(mode_of(group) is Mode.ELECT for group in self._groups.values())

    def _add_pops(self) -> None:
        pops, numbers = self._run.final_checks.pops, count()
        ops: dict[tuple[Hold, str], str] = {}
        for event in () if pops is None else pops.events:
            hold, place = event.hold, event.hold.place
            assert place is not None, "popped"
            queue = f"{place.topic}/{place.group}/{place.queue_id}"
            where: dict[str, Any] = {"group": POP_GROUP, "q": queue}
            is_hold = is_stored_once(self._expected.messages[hold.key]) and hold.is_replicated
            if event.what == "popped":
                given: dict[str, Any] = where | {"messages": [[place.queue_offset, hold.key]]}
                more: dict[str, Any] = {"partial": True, "unordered": True}
                if is_hold:
                    more = {"since": event.since_us / MS, "invisible_ms": event.invisible_ms}
                f = "pop" if is_hold else "poll"
                self._add(event.at_us, _DELIVERY, "note", POP_GROUP, f, **given, **more)
            elif is_hold:
                f = "ack" if event.what in ("asked", "acked") else "invisible"
                is_begin = event.what in ("asked", "changed")
                if is_begin:
                    ops[hold, f] = f"{f} {next(numbers)}"
                op, rank = ops[hold, f], _BEGIN if is_begin else _OUTCOME
                where["offset"] = place.queue_offset
                if f == "invisible":
                    where["invisible_ms"] = event.invisible_ms
                fields = where if is_begin else {}
                self._add(event.at_us, rank, "invoke" if is_begin else "ok", POP_GROUP, f, op, **fields)

    # Losses.

    def _add_losses(self) -> None:
        end_us = self._run.world.now_us
        for host in self._cluster.hosts:
            name = host.group.name
            if not self._has_registry and not host.is_master:
                continue  # a master with a fixed role keeps what a slave loses
            for at_us in host.losses_us:
                keeps = ["SEND_OK"] if host.group.flush == "SYNC_FLUSH" and at_us not in host.wipes_us else []
                self._add(at_us, _FAULT, "note", host.name, "fault", broker=name, text="bytes lost", keeps=keeps)
            if host.flips:
                self._add(end_us, _FAULT, "note", host.name, "fault", broker=name, text="bits flipped")
        if isinstance(self._run.checks, GroupChecks):
            for name, until_us in self._run.checks.accepted_us.items():
                at_us = min(until_us, end_us)
                self._add(at_us, _FAULT, "note", "operator", "fault", broker=name, text="a loss was accepted")

    # Logs.

    def _log_of(self, host: Host) -> tuple[list[LoggedMessage], bool]:
        """Return the records of a host's log, and whether they are all."""
        assert host.broker is not None, "it runs"
        store_log, segment = host.broker.store.log, host.config.segment_bytes
        data = read_log(host.machine.disk, store_log.start, store_log.written_end, segment)
        found, damage = walk(data, store_log.start, segment)
        return found, damage is None

    def _write_log(self, writer: HistoryWriter, host: Host, found: list[LoggedMessage], is_whole: bool) -> None:
        assert host.broker is not None, "it runs"
        queues: dict[tuple[str, int], list[LoggedMessage]] = {}
        for each in found:
            if each.topic in TOPICS and each.key in self._expected.messages:
                queues.setdefault((each.topic, each.record.queue_id), []).append(each)
        is_master = host is self._cluster.members(host.group)[0]
        is_from_start = host.broker.store.log.start == 0
        for (topic, queue_id), records in queues.items():
            messages = [[each.record.queue_offset, each.key, hash_of(each.body)] for each in records]
            fields: dict[str, Any] = {
                "q": f"{topic}/{host.group.name}/{queue_id}",
                "from": 0 if is_from_start else messages[0][0],
                "next": records[-1].record.queue_offset + 1,
                "messages": messages,
                "node": host.name,
            }
            if is_master and is_whole:
                fields["complete"] = True
            writer.note("simulation", "read", **fields)
