"""Cycles among sends and reads: an effect that must be both before and after another one.

    send of offset 4 ──► send of offset 5 of a queue             order of versions (ww)
    end of an operation ──► operations begun after it            order of a process, or real time
    sends of what a poll gave ──► the poll                       (wr)

Only the edges backwards are stored, at most two of each node. A send whose place is not certain (an unknown outcome,
several copies, a delayed message) has no edge of the first kind. Rules: G0 (sends only), G1c.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from judge.anomalies import Findings
from judge.history import Line, Promises
from judge.messages import DELAYED, INDIRECT, TRANSACTION, Faults, Messages
from judge.queues import Queues

_SHOWN = 12


class Graph:
    """Nodes are sends, polls, and the moments of a process: what is behind a moment began after all before it."""

    def __init__(self, promises: Promises) -> None:
        self._order = promises.order
        self._moments: dict[str, int] = {}
        """Process to its last moment."""
        self.lines = array("q")
        """Line of each send and poll; 0 of moments."""
        self.first = array("i")
        self.second = array("i")
        self.is_poll = bytearray()
        self.node_of: dict[int, int] = {}
        """Message number to the node of its send, -1 if it was sent more than once."""

    def _node(self, line: int, before: int, other: int = -1, *, is_poll: bool = False) -> int:
        self.lines.append(line)
        self.first.append(before)
        self.second.append(other)
        self.is_poll.append(is_poll)
        return len(self.lines) - 1

    def _process(self, line: Line) -> str:
        return "" if self._order == "realtime" else line["p"]

    def begin(self, message: int, number: int, line: Line) -> None:
        """Add a send."""
        node = self._node(number, self._moments.get(self._process(line), -1))
        self.node_of[message] = -1 if message in self.node_of else node

    def end(self, message: int, line: Line) -> None:
        """Add the moment of an acknowledgement."""
        node = self.node_of.get(message, -1)
        if node >= 0:
            process = self._process(line)
            self._moments[process] = self._node(0, self._moments.get(process, -1), node)

    def poll(self, message: int, number: int, line: Line) -> None:
        """Add a poll, whose last message of a queue is known by its sender."""
        process = self._process(line)
        node = self._node(number, self._moments.get(process, -1), self.node_of.get(message, -1), is_poll=True)
        self._moments[process] = self._node(0, node)

    def add_versions(self, messages: Messages, queues: Queues, faults: Faults, out_of_order: set[int]) -> None:
        """Add the order of each queue's offsets. `out_of_order`: messages reported already.

        Offsets that a broker had given before a fault may belong to other messages after it.
        """
        uncertain = DELAYED | INDIRECT | TRANSACTION
        for queue in queues.by_name.values():
            before = -1
            for offset in sorted(queue.entries):
                message = queues.message_at(queue, offset)
                node = self.node_of.get(message, -1)
                is_certain = queue.topic == messages.topics[message] and message not in messages.copies
                if node < 0 or not is_certain or messages.flags[message] & uncertain or message in out_of_order:
                    continue
                if faults.after(messages.sent[message], queue.broker):
                    continue
                self.second[node] = before
                before = node

    def cycles(self) -> Iterator[list[int]]:
        """Yield the nodes of each strongly connected component of more than one node (Tarjan, without recursion)."""
        count = len(self.lines)
        index, low = array("i", [0]) * count, array("i", [0]) * count
        on_stack = bytearray(count)
        stack: list[int] = []
        counter = 0
        for root in range(count):
            if index[root]:
                continue
            work = [(root, 0)]
            while work:
                node, step = work.pop()
                if step == 0:
                    counter += 1
                    index[node] = low[node] = counter
                    stack.append(node)
                    on_stack[node] = 1
                else:
                    done = self.first[node] if step == 1 else self.second[node]
                    if done >= 0 and on_stack[done]:
                        low[node] = min(low[node], low[done])
                is_deeper = False
                for following in range(step, 2):
                    other = self.first[node] if following == 0 else self.second[node]
                    if other >= 0 and not index[other]:
                        work += [(node, following + 1), (other, 0)]
                        is_deeper = True
                        break
                    if other >= 0 and on_stack[other]:
                        low[node] = min(low[node], index[other])
                if not is_deeper and low[node] == index[node]:
                    component = _popped(stack, on_stack, node)
                    if len(component) > 1:
                        yield component


def _popped(stack: list[int], on_stack: bytearray, node: int) -> list[int]:
    component: list[int] = []
    while not component or component[-1] != node:
        component.append(stack.pop())
        on_stack[component[-1]] = 0
    return component


def judge(graph: Graph, findings: Findings) -> None:
    """Add the cycles of a graph whose versions are known."""
    for component in graph.cycles():
        lines = sorted(graph.lines[node] for node in component if graph.lines[node])
        rule = "G1c" if any(graph.is_poll[node] for node in component) else "G0"
        findings.add(rule, f"{len(lines)} operations are each before and after the others", *lines[:_SHOWN])
