"""Runs a script: commands above a `----`, the events that followed below; blocks are separated by empty lines.

    kill 0
    pass 4000
    ----
     2.8 s  1 serving: broker 1 reads for 0, missing in 2 checks

Commands: `begin MODE [size=N] [started=0,1] [key=value …]`, `start ID`, `kill ID`, `cut ID registry|ID`,
`join ID registry|ID`, `registry stop|start`, `pass MS`, `allow ID PERMISSION`, `switch ID`, `force ID`, `send N`,
`consume N`, `flap ID MS TIMES` (its registry is cut and joined), `show`. Times count from the start of the command.
"""

from collections.abc import Callable
from dataclasses import replace

from tandemq.coordination.registry.records import BrokerPermission, Mode, with_member
from tests.scripts.transcript import parse
from tests.unit.coordination.world import World


class Script:
    """Runs the commands of a script on one group."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._began = 0.0

    @property
    def world(self) -> World:
        assert self._world is not None, "a script starts with `begin`"
        return self._world

    def run(self, line: str) -> list[str]:
        """Run one command; returns the lines of the members, and those of the command."""
        name, plain, pairs = parse(line)
        command: Callable[..., list[str] | None] = getattr(self, f"_do_{name}")
        answers = command(*plain, **pairs) or []
        news = self._news()
        return answers if name == "begin" else news + answers  # how a group begins is always the same

    def _news(self) -> list[str]:
        """Return the lines of the members since the last call."""
        if self._world is None:
            return []
        lines = []
        for line in self.world.trace:
            at, text = line.split(maxsplit=1)
            lines.append(f"{(float(at) - self._began) / 1000:4.1f} s  {text}")
        self.world.trace.clear()
        self._began = self.world.now
        return lines

    def _do_begin(self, mode: str, size: str = "2", started: str = "", **settings: str) -> None:
        numbers = {key: int(value) for key, value in settings.items()}
        self._world = World(7, Mode(mode), size=int(size), drift_scale=0, traced=True, started=False, **numbers)
        self.world.delay_ms_max = 1
        for node in self.world.nodes.values():
            if not started or str(node.id) in started.split(","):
                node.start()
        self.world.run(2_500)

    def _do_start(self, node: str) -> None:
        self.world.nodes[int(node)].start()

    def _do_kill(self, node: str) -> None:
        self.world.nodes[int(node)].crash()

    def _do_cut(self, one: str, other: str) -> None:
        if other == "registry":
            self.world.cut_registry(int(one))
        else:
            self.world.cut_link(int(one), int(other))

    def _do_join(self, one: str, other: str) -> None:
        if other == "registry":
            self.world.cut_from_registry.discard(int(one))
        else:
            self.world.cut_links.discard(frozenset((int(one), int(other))))

    def _do_registry(self, what: str) -> None:
        if what == "stop":
            self.world.stop_registry()
        else:
            self.world.start_registry()

    def _do_pass(self, ms: str) -> None:
        self.world.run(self.world.now + int(ms))

    def _do_flap(self, node: str, ms: str, times: str) -> None:
        for _ in range(int(times)):
            self._do_cut(node, "registry")
            self._do_pass(ms)
            self._do_join(node, "registry")
            self._do_pass("600")

    def _do_allow(self, node: str, permission: str) -> None:
        config = self.world.config
        member = config.member(int(node))
        assert member is not None, "a member of the group"
        self.world.config = with_member(config, replace(member, permission=BrokerPermission(permission)))
        self.world.configure(self.world.config)

    def _do_switch(self, target: str) -> list[str]:
        master = self.world.nodes[self.world.record.master]
        assert master.member is not None, "a switch is asked of the living master"
        verdict = master.member.switch(int(target), master.clock())
        master.after_input()
        return [f"{'accepted' if verdict.is_accepted else 'refused'}: {verdict.text}"]

    def _do_force(self, node: str) -> list[str]:
        forced = self.world.nodes[int(node)]
        assert forced.member is not None, "a living member is forced"
        self.world.is_unclean = True
        verdict = forced.member.force_master(forced.clock())
        forced.after_input()
        return [f"{'accepted' if verdict.is_accepted else 'refused'}: {verdict.text}"]

    def _do_send(self, count: str) -> list[str]:
        taken: dict[int, int] = {}
        for _ in range(int(count)):
            for node in self.world.nodes.values():
                if node.take_message(self.world.message):
                    self.world.message += 1
                    taken[node.id] = taken.get(node.id, 0) + 1
        self.world.run(self.world.now + 10)
        return [f"sent {number} to {node}" for node, number in taken.items()] or ["no member accepts messages"]

    def _do_consume(self, count: str) -> list[str]:
        lines = []
        for node in self.world.nodes.values():
            before = node.offset
            if node.consume(int(count)):
                lines.append(
                    f"{node.id} delivered {before}..{node.offset - 1}" if node.offset > before else f"{node.id} empty"
                )
        return lines or ["no member serves reads"]

    def _do_show(self) -> list[str]:
        record = self.world.record
        who = f"epoch {record.epoch} master {record.master} in sync {list(record.in_sync)}"
        lines = [f"{who} {record.mode.value} reader {record.reader}"]
        for node in self.world.nodes.values():
            if node.member is None:
                lines.append(f"{node.id} down")
                continue
            now_ms = node.clock().mono_ms
            what = ("R" if node.member.may_read(now_ms) else "-") + ("W" if node.member.may_write(now_ms) else "-")
            lonely = " lonely" if node.member.status(node.clock()).is_lonely else ""
            lines.append(
                f"{node.id} {what} {node.member.stage.value}{lonely}, log {len(node.log)}, read to {node.offset}"
            )
        return lines
