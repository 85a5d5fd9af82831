"""Scripts of a broker group: commands above a `----`, the expected results below; empty lines separate the blocks.

    send master 3
    ----
    SEND_OK offsets 0..2; slave1 acked log_end

Commands: `start ROLE slaves=N key=value …`, `send [N] [wait=false]`, `cut`, `refuse`, `accept`, `stall`, `flow`,
`pass MS`, `kill slave|master`, `start slave|master [boot=ID]`, `lose MESSAGES`, `show`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandemq.model.codes import ResponseCode
from tests.scripts.transcript import parse
from tests.unit.broker.ha.group import Group

_NAMES = {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}


class Script:
    """One broker group, and the closed connections reported so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: Group | None = None
        self._waiting: dict[int, int] = {}
        """Time of each send without a response, by opaque."""
        self._reported: dict[int, int] = {}
        """Number of reported closed connections of each slave."""

    @property
    def group(self) -> Group:
        assert self._group is not None, "a script begins with `start`"
        return self._group

    def run(self, line: str) -> list[str]:
        """Run one command; return its results."""
        name, words, pairs = parse(line)
        command: Callable[[list[str], dict[str, str]], list[str]] = getattr(self, f"_do_{name}")
        return [*command(words, pairs), *self._results()]

    # Commands.

    def _do_start(self, words: list[str], pairs: dict[str, str]) -> list[str]:
        if words[0] in ("slave", "master"):
            if words[0] == "slave":
                self.group.slaves[0] = self.group.start_slave(1)
            else:
                self.group.start_master(boot_id=pairs.get("boot", "boot-1"))
                self._waiting.clear()
            self.group.settle()
            return []
        slaves = int(pairs.pop("slaves", "1"))
        settings: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in pairs.items()}
        self._group = Group(self._path, role=words[0], slaves=slaves, **settings)
        return []

    def _do_send(self, words: list[str], pairs: dict[str, str]) -> list[str]:
        properties = {"WAIT": pairs["wait"]} if "wait" in pairs else {}
        for _ in range(int(words[0]) if words else 1):
            self._waiting[self.group.send(b"x" * 100, **properties)] = self.group.now.mono_ms
        self.group.settle()
        return []

    def _do_cut(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        self.group.cut()
        self.group.settle()
        return []

    def _do_refuse(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        self.group.refuses = True
        return []

    def _do_accept(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        self.group.refuses = False
        return []

    def _do_stall(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        for wire in self.group.wires:
            wire.stalls_down = True
        return []

    def _do_flow(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        for wire in self.group.wires:
            wire.stalls_down = False
        self.group.settle()
        return []

    def _do_pass(self, words: list[str], _pairs: dict[str, str]) -> list[str]:
        self.group.pass_time(int(words[0]))
        return []

    def _do_kill(self, words: list[str], _pairs: dict[str, str]) -> list[str]:
        self.group.stop(self.group.slave if words[0] == "slave" else self.group.master)
        return []

    def _do_lose(self, words: list[str], _pairs: dict[str, str]) -> list[str]:
        """Overwrite the newest messages of the stopped master's log with zeroes; all messages have the same size."""
        log = self.group.master.node.store.log
        keep = log.written_end - int(words[0]) * (
            log.written_end // self.group.master.node.store.queues["TopicA", 0].max_offset
        )
        (file,) = sorted((self._path / "master" / "commitlog").iterdir())
        data = file.read_bytes()
        file.write_bytes(data[:keep] + bytes(len(data) - keep))
        return [f"the master's log is cut from {log.written_end} to {keep}"]

    def _do_show(self, _words: list[str], _pairs: dict[str, str]) -> list[str]:
        lines = [f"master log_end {self.group.master.log_end}"]
        for number, slave in enumerate(self.group.slaves, start=1):
            state = slave.session().state.name if slave.session() is not None else "not connected"
            lines.append(f"slave{number} log_end {slave.log_end} {state}")
        return lines

    # Results.

    def _results(self) -> list[str]:
        """Return responses and closed connections since the last call, and the number of sends without a response."""
        lines: list[str] = []
        results: list[tuple[str, int, str]] = []
        for opaque, since in list(self._waiting.items()):
            answer = self.group.master.answer_to(opaque)
            if answer is not None:
                del self._waiting[opaque]
                code = _NAMES.get(answer.code) or f"refused: {ResponseCode(answer.code).name}"
                results.append((code, self.group.now.mono_ms - since, answer.fields.get("queueOffset", "")))
        lines += _grouped(results)
        if self._waiting:
            lines.append(f"{len(self._waiting)} senders wait")
        for number, slave in enumerate(self.group.slaves, start=1):
            reported = min(self._reported.get(number, 0), len(slave.closes))  # a restarted slave begins with none
            self._reported[number] = len(slave.closes)
            for _, reason in slave.closes[reported:]:
                lines.append(f"slave{number} closes: {reason}")
        return lines


def _grouped(results: list[tuple[str, int, str]]) -> list[str]:
    """Return a line for all results with the same code and time. `results`: code, milliseconds, queue offset."""
    lines: list[str] = []
    while results:
        code, after_ms, first = results[0]
        run = [item for item in results if item[0] == code and item[1] == after_ms]
        results = [item for item in results if item not in run]
        offsets = first if len(run) == 1 else f"{first}..{run[-1][2]}"
        lines.append(code + (f" offset {offsets}" if first else "") + (f" after {after_ms} ms" if after_ms else ""))
    return lines
