"""Ordinary sends in whole frames of one length, of all connections of a turn, read in one call.

    a turn begins ── read(links, received) ──► rows by link ── take(link, data), link by link ──► SendState.rows

Frames of connections with one template differ only in queue, born time, unique key and opaque. So it does not matter
on which connection each came: 64 connections with one message each are read like one connection with 64. Rows are kept
until their connection is processed, so messages keep the order in which they were received.

Source: docs/decisions/0007-send-header-patterns.md; docs/internals/performance.md, "A send".
"""

from collections.abc import Mapping, Sequence
from struct import Struct

from tandemq.broker.connections.connection import NO_TEMPLATE, Link, SendTemplate
from tandemq.broker.send.send_state import SendState
from tandemq.codec.remoting.frame import RawFrame
from tandemq.codec.remoting.send_header import Match, SendRun
from tandemq.storage.log.message_rows import MessageRow

RUN_MIN = 4
"""Minimum number of frames to read at once; fewer are read faster one by one."""
RUNS_MAX = 512
"""Maximum number of known pairs of header pattern and frame length; 11 MB at most."""
SHAPES_MAX = 4
"""Maximum number of runs per pattern and length, which differ in where the numbers in the header lie."""
BYTES_MAX = 1 << 20
"""Maximum of bytes of several connections that are joined; joining more gains nothing and takes memory."""
FAILURES_MAX = 8
"""Maximum number of failed attempts within one turn; the rest is then read one by one."""
_lengths = Struct(">II").pack
_Piece = tuple[Link, bytes]


class ReadAhead:
    """Messages of one turn that are read before their connections are processed."""

    def __init__(self, state: SendState) -> None:
        """`state`: state shared by all paths of sends; gets the rows."""
        self._state = state
        self._read: dict[int, tuple[SendTemplate, list[MessageRow], bytes]] = {}
        """By connection: the template, the messages read and not yet accepted, and the bytes behind them."""
        self._runs: dict[tuple[Match, bytes], list[SendRun]] = {}
        """Readers of many frames, by header pattern and the first 8 bytes of a frame; cleared when it is full."""
        self._failures = 0

    def read(self, links: Mapping[int, Link], received: Sequence[tuple[int, bytes]]) -> None:
        """Read the whole frames at the beginning of what each connection received in this turn.

        Cost: less than a microsecond per connection, then `SendRun.read`, at most two or three times for each frame.
        """
        self._read.clear()
        self._failures = 0
        if self._state.refusal is not None:
            return
        found: dict[tuple[SendRun, int], list[_Piece]] = {}
        for number, data in dict(reversed(received)).items():  # the first piece of each connection
            link = links.get(number)
            if link is None or link.template is NO_TEMPLATE:
                continue
            template = link.template
            for run in self._runs.get((template.matches, data[:8]), ()):
                if len(data) >= run.frame_bytes and run.fits(data) and link.decoder.is_between_frames:
                    found.setdefault((run, id(template)), []).append((link, data))
                    break
        for (run, _), pieces in found.items():
            self._read_pieces(run, pieces)

    def _read_pieces(self, run: SendRun, pieces: Sequence[_Piece]) -> None:
        """Read pieces in one call; if they are too large or differ, each half by itself."""
        counts = [len(data) // run.frame_bytes for _, data in pieces]
        count = sum(counts)
        if count < RUN_MIN or self._failures >= FAILURES_MAX:
            return
        if len(pieces) == 1 or count * run.frame_bytes <= BYTES_MAX:
            if self._read_run(run, pieces, counts):
                return
            self._failures += 1
        if len(pieces) > 1:
            half = len(pieces) // 2
            self._read_pieces(run, pieces[:half])
            self._read_pieces(run, pieces[half:])

    def _read_run(self, run: SendRun, pieces: Sequence[_Piece], counts: Sequence[int]) -> bool:
        """Read `counts` frames of each piece as rows; return False, with nothing done, if one of them differs."""
        wholes = [data[: count * run.frame_bytes] for (_, data), count in zip(pieces, counts, strict=True)]
        sends = run.read(wholes[0] if len(wholes) == 1 else b"".join(wholes), sum(counts))
        if sends is None or len(sends.bodies[0]) > self._state.body_bytes_max:
            return False
        template = pieces[0][0].template
        topic, _, queues, layout, flag, sys_flag, command_flag = template
        encoded = topic.encoded
        origins: list[tuple[int, bytes]] = []
        for (link, _), count in zip(pieces, counts, strict=True):
            origins += ((link.number, link.born_host),) * count
        try:
            rows: list[MessageRow] = [
                (
                    queues[queue_id],
                    encoded,
                    layout,
                    unique,
                    body,
                    flag,
                    sys_flag,
                    int(born_ms),
                    born_host,
                    number,
                    opaque,
                    command_flag,
                )
                for queue_id, born_ms, unique, opaque, body, (number, born_host) in zip(*sends, origins, strict=True)
            ]
        except KeyError:  # a queue that no connection with this template has sent to
            return False
        at = 0
        for (link, data), count, whole in zip(pieces, counts, wholes, strict=True):
            self._read[link.number] = template, rows[at : at + count], data[len(whole) :]
            at += count
        return True

    def take(self, link: Link, data: bytes) -> bytes:
        """Accept the messages read ahead of a connection; return the bytes that are still to be read.

        These are all of `data` if nothing was read ahead, or if meanwhile the topic was deleted or created again, sends
        are refused, or the maximum message size shrank.
        """
        read = self._read.pop(link.number, None)
        if read is None:
            return data
        template, rows, rest = read
        state = self._state
        is_current = state.topics.table.get(template.topic.config.topic_name) is template.topic
        if not is_current or not state.admits_ordinary(link) or len(rows[0][4]) > state.body_bytes_max:
            return data
        state.rows += rows
        return rest

    def learn(self, link: Link, frame: RawFrame) -> None:
        """Prepare reading runs of frames like this one, once the last frames of two deliveries have the same length."""
        _, header, body = frame
        template, size = link.template, len(header) + len(body)
        if link.sent_bytes != size or template is NO_TEMPLATE:
            link.sent_bytes = size
            return
        lengths = _lengths(4 + size, len(header))
        known = self._runs.get((template.matches, lengths), [])
        if not body or any(run.fits(lengths + header) for run in known) or template.matches(header) is None:
            return
        if len(self._runs) >= RUNS_MAX:
            self._runs.clear()
        self._runs[template.matches, lengths] = [SendRun(header, len(body)), *known[: SHAPES_MAX - 1]]
