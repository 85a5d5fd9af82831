"""Ordinary sends that came as whole frames of one length, those of all links of a turn: read all at once.

    a turn begins ── read(links, received) ──► rows by link ── take(link, data) when it is its turn ──► SendPath.rows

Frames of links that send alike are the same but for queue, born time, unique key and opaque, so it does not matter on
which link each came: those of 64 links with one message each are read like 64 of one link. Rows wait until their link
has its turn, so messages keep the order in which they were received.

Source: docs/decisions/0007-send-header-patterns.md; docs/internals/performance.md, "A send".
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from tandemq.broker.connections.connection import NO_LIKENESS, Likeness, Link
from tandemq.codec.remoting.frame import RawFrame
from tandemq.codec.remoting.send_header import Match, SendRun
from tandemq.storage.log.message_rows import MessageRow

if TYPE_CHECKING:
    from tandemq.broker.send.processor import SendPath

RUN_MIN = 4
"""Fewer frames are read faster one by one."""
RUNS_MAX = 512
"""So many lengths of frames are known, of all messages; 11 MB at most."""
SHAPES_MAX = 4
"""So many of one length: their numbers may have their digits elsewhere."""
BYTES_MAX = 1 << 20
"""So much of several links is put together at once: more gains nothing and takes memory."""
FAILURES_MAX = 8
"""If so much of a turn could not be read together, the rest is not tried."""
_lengths = Struct(">II").pack
_Piece = tuple[Link, bytes]


class Together:
    """Reads ahead what the links of one turn have in common."""

    def __init__(self, owner: "SendPath") -> None:
        """`owner` gets the rows."""
        self._owner = owner
        self._read: dict[int, tuple[Likeness, list[MessageRow], bytes]] = {}
        """Messages read and not yet taken, by link, and the bytes behind them."""
        self._runs: dict[tuple[Match, bytes], list[SendRun]] = {}
        """How to read many frames at once, by what knows their headers and the 8 bytes that each begins with; forgotten
        all at once when there are too many."""
        self._failures = 0

    def read(self, links: Mapping[int, Link], received: Sequence[tuple[int, bytes]]) -> None:
        """Read what lies whole at the beginning of what each link brought to this turn.

        Cost: less than a microsecond per link; then see `SendRun.read`, at most twice or three times for each frame.
        """
        self._read.clear()
        self._failures = 0
        if self._owner.refusal is not None:
            return
        found: dict[tuple[SendRun, int], list[_Piece]] = {}
        for number, data in dict(reversed(received)).items():  # of each link what it brought first
            link = links.get(number)
            if link is None or link.likeness is NO_LIKENESS:
                continue
            like = link.likeness
            for run in self._runs.get((like.matches, data[:8]), ()):
                if len(data) >= run.frame_bytes and run.fits(data) and link.decoder.is_between_frames:
                    found.setdefault((run, id(like)), []).append((link, data))
                    break
        for (run, _), pieces in found.items():
            self._read_pieces(run, pieces)

    def _read_pieces(self, run: SendRun, pieces: Sequence[_Piece]) -> None:
        """Read them all at once; if they are many bytes, or not all alike, each half of them."""
        counts = [len(data) // run.frame_bytes for _, data in pieces]
        count = sum(counts)
        if count < RUN_MIN or self._failures >= FAILURES_MAX:
            return
        if len(pieces) == 1 or count * run.frame_bytes <= BYTES_MAX:
            if self._read_alike(run, pieces, counts):
                return
            self._failures += 1
        if len(pieces) > 1:
            half = len(pieces) // 2
            self._read_pieces(run, pieces[:half])
            self._read_pieces(run, pieces[half:])

    def _read_alike(self, run: SendRun, pieces: Sequence[_Piece], counts: Sequence[int]) -> bool:
        """Make rows of their frames, so many of each; False (and nothing done) if one is not like the others."""
        wholes = [data[: count * run.frame_bytes] for (_, data), count in zip(pieces, counts, strict=True)]
        sends = run.read(wholes[0] if len(wholes) == 1 else b"".join(wholes), sum(counts))
        if sends is None or len(sends.bodies[0]) > self._owner.body_bytes_max:
            return False
        like = pieces[0][0].likeness
        topic, _, queues, layout, flag, sys_flag, command_flag = like
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
        except KeyError:  # a queue that none of these links has sent to
            return False
        at = 0
        for (link, data), count, whole in zip(pieces, counts, wholes, strict=True):
            self._read[link.number] = like, rows[at : at + count], data[len(whole) :]
            at += count
        return True

    def take(self, link: Link, data: bytes) -> bytes:
        """Hand over what was read of a link's bytes; returns those that are still to read.

        All of them if none were, or if meanwhile the topic was made anew, or messages, or such large ones, are refused.
        """
        read = self._read.pop(link.number, None)
        if read is None:
            return data
        like, rows, rest = read
        owner = self._owner
        is_current = owner.topics.table.get(like.topic.config.topic_name) is like.topic
        if not is_current or not owner.takes_alike(link) or len(rows[0][4]) > owner.body_bytes_max:
            return data
        owner.rows += rows
        return rest

    def learn(self, link: Link, frame: RawFrame) -> None:
        """A length that the last frames of two deliveries of a link have is likely to come again: know it then."""
        _, header, body = frame
        like, size = link.likeness, len(header) + len(body)
        if link.sent_bytes != size or like is NO_LIKENESS:
            link.sent_bytes = size
            return
        lengths = _lengths(4 + size, len(header))
        known = self._runs.get((like.matches, lengths), [])
        if not body or any(run.fits(lengths + header) for run in known) or like.matches(header) is None:
            return
        if len(self._runs) >= RUNS_MAX:
            self._runs.clear()
        self._runs[like.matches, lengths] = [SendRun(header, len(body)), *known[: SHAPES_MAX - 1]]
