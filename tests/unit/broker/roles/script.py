"""Runs a script of a group with a registry, and records what clients and operators see; see `tests.scripts.transcript`.

    kill 0
    pass 4000
    consume 3
    ----
     2.8 s  1 serving: broker 1 reads for 0, missing in 2 checks
     2.8 s  1 may be read: broker 1 reads for 0, missing in 2 checks
    1 delivers 2..4 and accepts the commit of 5

The group      `begin MODE [members=N] [started=0,1] [setting=value …]`, `start ID [boot=ID]`, `kill ID`,
               `power ID` (off), `cut ID registry|ID`, `join ID registry|ID`, `stall`, `flow`, `pass MS`,
               `flap ID MS TIMES` (its registry), `disk ID hangs|works` (what it saves)
Operators      `registry stop|start`, `allow ID PERMISSION`, `switch ID`, `force ID`, `show`
Clients        `send N`: each message is sent to one member after the other, until one accepts it
               `consume N`: a pull of N messages from the consumer's position and a commit, at every member
               `pull N`, `commit [OFFSET]`: only the pull, or only the commit
               `hold`: a pull that waits for more at every member; `attach`: a consumer's heartbeat to every member
               `again`: the consumer is restarted, at the offset committed at a member that may be read

Times count from the beginning of the command. New entries of a member's timeline are recorded unchanged; the reason of
a refusal when it changes.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from lab.sim.world.disk import SimDisk
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.scripts.transcript import parse
from tests.unit.broker.harness import messages_in, run_job, send_fields
from tests.unit.broker.roles.registry_group import STEP_MS, Broker, RegistryGroup

STATUS = {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0}
HELD_MS = 600_000


class Script:
    """One group, a producer, a consumer, and the recorded lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: RegistryGroup | None = None
        self._forget()

    def _forget(self) -> None:
        self._disks: dict[int, SimDisk] = {}
        self._lines: list[str] = []
        self._began_ms = 0
        self._told: dict[int, int] = {}
        """By member: number of timeline entries recorded."""
        self._named: dict[int, int | None] = {}
        """By member: the last registration at the name servers."""
        self._waiting: list[tuple[int, int, str]] = []
        """Requests without a response: member, opaque, description."""
        self._sent = 0
        self._position = 0
        self._consumed = 0
        """Messages below this offset were delivered to the consumer before."""
        self._why: dict[int, str] = {}
        """By member: the reason of its last refusal."""

    @property
    def group(self) -> RegistryGroup:
        assert self._group is not None, "a script begins with `begin`"
        return self._group

    @property
    def _living(self) -> list[tuple[int, Broker]]:
        return sorted(self.group.brokers.items())

    def run(self, line: str) -> list[str]:
        """Run one command; return the new timeline entries and the responses to clients."""
        name, plain, pairs = parse(line)
        self._began_ms = 0 if self._group is None else self.group.now.mono_ms
        command: Callable[..., None] = getattr(self, f"_do_{name}")
        command(*plain, **pairs)
        if name == "begin":  # the beginning of a group is always the same
            self._listen()
            self._lines.clear()
        self.group.settle()
        self._listen()
        lines, self._lines = self._lines, []
        return lines

    # Recording.

    def _say(self, text: str) -> None:
        line = f"{(self.group.now.mono_ms - self._began_ms) / 1000:4.1f} s  {text}"
        if line not in self._lines:
            self._lines.append(line)

    def _listen(self) -> None:
        for number, broker in self._living:
            if broker.node.failover is None:
                continue
            timeline = broker.failover.timeline
            for entry in timeline[self._told.get(number, 0) :]:
                self._say(f"{number} {entry['text']}")
            self._told[number] = len(timeline)
            named = broker.node.registration.broker_id
            if named != self._named.get(number):
                self._named[number] = named
                self._say(f"{number} {'leaves the name servers' if named is None else f'registers as broker {named}'}")
        for waits in list(self._waiting):
            number, opaque, what = waits
            answer = self.group.brokers[number].answer_to(opaque) if number in self.group.brokers else None
            if answer is not None or number not in self.group.brokers:
                self._waiting.remove(waits)
                self._say(f"{number} answers the {what}: {self._of(number, answer)}")

    # The group.

    def _do_begin(self, mode: str, members: str = "2", started: str = "", **settings: str) -> None:
        self._forget()
        numbers = range(int(members))
        self._disks = {number: SimDisk(Random(number)) for number in numbers}
        changes: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in settings.items()}
        self._group = RegistryGroup(
            self._path,
            Mode(mode),
            members=int(members),
            disks=self._disks,
            started=[number for number in numbers if not started or str(number) in started.split(",")],
            **changes,
        )

    def _do_start(self, number: str, boot: str = "boot-1") -> None:
        broker = self.group.start(int(number), boot_id=boot)
        self._told[int(number)] = len(broker.failover.timeline)
        self._named[int(number)] = None

    def _do_kill(self, number: str) -> None:
        self.group.kill(int(number))
        self._disks[int(number)].kill()

    def _do_power(self, number: str) -> None:
        self.group.kill(int(number))
        self._disks[int(number)].crash()

    def _do_cut(self, one: str, other: str) -> None:
        if other == "registry":
            self.group.cut_off.add(int(one))
        else:
            self.group.apart |= {int(one)}
            self.group.pass_time(0)

    def _do_join(self, one: str, other: str) -> None:
        if other == "registry":
            self.group.cut_off.discard(int(one))
        else:
            self.group.apart.discard(int(one))

    def _do_stall(self) -> None:
        for wire in self.group.wires:
            wire.stalls_down = True

    def _do_flow(self) -> None:
        for wire in self.group.wires:
            wire.stalls_down = False

    def _do_disk(self, number: str, what: str) -> None:
        broker = self.group.brokers[int(number)]
        broker.run_jobs = what == "works"
        while broker.run_jobs and broker.jobs:
            broker.turn([], [run_job(broker.jobs.pop(0))])

    def _do_registry(self, what: str) -> None:
        self.group.registry_is_up = what == "start"

    def _do_pass(self, ms: str) -> None:
        self._listen()
        for _ in range(int(ms) // STEP_MS):
            self.group.pass_time(STEP_MS)
            self._listen()

    def _do_flap(self, number: str, ms: str, times: str) -> None:
        for _ in range(int(times)):
            self._do_cut(number, "registry")
            self._do_pass(ms)
            self._do_join(number, "registry")
            self._do_pass("600")

    # Operators.

    def _do_allow(self, number: str, permission: str) -> None:
        self.group.allow(int(number), BrokerPermission(permission))

    def _do_switch(self, target: str) -> None:
        self._ask(self.group.record.master, Code.TANDEM_SWITCH, {"target": int(target)}, "switch")

    def _do_force(self, number: str) -> None:
        for is_preview in (True, False):
            self._ask(int(number), Code.TANDEM_FORCE_MASTER, {"preview": is_preview}, "force-master")

    def _ask(self, number: int, code: int, fields: dict[str, object], what: str) -> None:
        self._waiting.append((number, self.group.brokers[number].send_request(code, fields), what))
        self._listen()

    def _do_show(self) -> None:
        record = self.group.record
        who = f"epoch {record.epoch} master {record.master} in sync {list(record.in_sync)}"
        self._lines.append(f"{who} {record.mode.value} reader {record.reader}")
        for number in sorted(self.group.allowed):
            broker = self.group.brokers.get(number)
            if broker is None:
                self._lines.append(f"{number} down")
                continue
            member = broker.failover.member
            isolated = " lonely" if member.status(self.group.now).is_lonely else ""
            may = ("R" if "R" in broker.may else "-") + ("W" if "W" in broker.may else "-")
            queue = broker.node.store.queues.get(("TopicA", 0))
            offset = broker.node.offsets.get("TopicA", "group", 0)
            trouble = (
                f", {member.why}"
                if member.stage in (MemberStage.UNREAD, MemberStage.AWAITING, MemberStage.CLAIMING)
                else ""
            )
            self._lines.append(
                f"{number} {may} {broker.stage}{isolated}: {0 if queue is None else queue.max_offset} messages, "
                f"{'nothing committed' if offset is None else f'committed to {offset}'}{trouble}"
            )

    # Clients.

    def _do_send(self, count: str) -> None:
        responses: list[tuple[str, str]] = []
        for _ in range(int(count)):
            for number, broker in self._living:
                opaque = broker.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {}), b"%d" % self._sent)
                self.group.settle()
                answer = broker.answer_to(opaque)
                if answer is None:
                    self._waiting.append((number, opaque, f"send of message {self._sent}"))
                    responses.append((f"{number} does not answer the send yet", ""))
                elif answer.code in STATUS:
                    responses.append((f"{number} {STATUS[answer.code]}", answer.fields["queueOffset"]))
                else:
                    responses.append((f"{number} refuses the send: {self._of(number, answer)}", ""))
                    continue
                self._sent += 1
                break
        for text in dict.fromkeys(text for text, _ in responses):
            offsets = [offset for one, offset in responses if one == text and offset]
            self._lines.append(f"{text} {_span(offsets[0], offsets[-1])}" if offsets else text)

    def _do_consume(self, count: str) -> None:
        for number, broker in self._living:
            position = self._pull(number, broker, int(count))
            if position is not None and position > self._position:
                self._position = position
                answer = self._commit(number, broker, position)
                done = answer is not None and answer.code == ResponseCode.SUCCESS
                outcome = "accepts" if done else "refuses" if answer is not None else "does not answer yet"
                self._lines[-1] += f" and {outcome} the commit of {position}"

    def _commit(self, number: int, broker: Broker, offset: int) -> Command | None:
        """Commit; return the response, None if it waits for other members for longer than a moment."""
        opaque = broker.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": offset})
        answer = broker.answer_to(opaque)
        if answer is None:
            self.group.pass_time(STEP_MS)
            answer = broker.answer_to(opaque)
        if answer is None:
            self._waiting.append((number, opaque, f"commit of {offset}"))
        return answer

    def _do_pull(self, count: str) -> None:
        found = [self._pull(number, broker, int(count)) for number, broker in self._living]
        self._position = max([position for position in found if position is not None], default=self._position)

    def _pull(self, number: int, broker: Broker, count: int) -> int | None:
        """Pull; return the offset behind the messages, None if the pull was refused."""
        answer = broker.pull("TopicA", self._position, most=count)
        assert answer is not None, "the pull does not wait"
        if answer.code == ResponseCode.SUCCESS:
            offsets = [message.queue_offset for message in messages_in(answer)]
            before = min(self._consumed, offsets[-1] + 1)
            repeated = f", {_span(offsets[0], before - 1)} again" if before > offsets[0] else ""
            self._consumed = max(self._consumed, offsets[-1] + 1)
            self._lines.append(f"{number} delivers {_span(offsets[0], offsets[-1])}{repeated}")
            return offsets[-1] + 1
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._lines.append(f"{number} has no more messages")
            return self._position
        self._lines.append(f"{number} refuses the pull: {self._of(number, answer)}")
        return None

    def _do_commit(self, offset: str = "") -> None:
        for number, broker in self._living:
            wanted = int(offset) if offset else self._position
            answer = self._commit(number, broker, wanted)
            said = "nothing yet" if answer is None else self._of(number, answer)
            self._lines.append(f"{number} answers the commit of {wanted}: {said}")

    def _do_hold(self) -> None:
        for number, broker in self._living:
            queue = broker.node.store.queues.get(("TopicA", 0))
            end = 0 if queue is None else queue.max_offset
            answer = broker.pull("TopicA", end, wait_ms=HELD_MS)
            if answer is None:
                self._waiting.append((number, broker._opaque, "pull that waited"))
                self._lines.append(f"{number} holds the pull")
            else:
                self._lines.append(f"{number} refuses the pull: {self._of(number, answer)}")

    def _do_attach(self) -> None:
        for _, broker in self._living:
            broker.heartbeat("group", {"TopicA": "*"})

    def _do_again(self) -> None:
        for number, broker in self._living:
            answer = broker.ask(Code.QUERY_CONSUMER_OFFSET, OFFSET)
            if answer.code == ResponseCode.SUCCESS:
                self._position = int(answer.fields["offset"])
                self._lines.append(f"the consumer begins at {self._position}, by broker {number}")

    def _of(self, number: int, answer: Command | None) -> str:
        if answer is None:
            return "nothing, the connection is gone"
        name, remark = ResponseCode(answer.code).name, answer.remark or ""
        if answer.code != ResponseCode.NO_PERMISSION:
            return f"{name}, {remark}" if remark else name
        is_news, self._why[number] = remark != self._why.get(number), remark
        return f"{name}, {remark}" if is_news else f"{name}, as before"


def _span(first: object, last: object) -> str:
    return f"{first}" if first == last else f"{first}..{last}"
