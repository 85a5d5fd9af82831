"""Ordinary sends that came as whole frames of one length, those of all links of a turn: read all at once.

    a turn begins ── read(links, received) ──► rows by link ── take(link, data) when it is its turn ──► SendPath.rows

Frames of links that send alike are the same but for queue, born time, unique key and opaque, so it does not matter on
which link each came: 64 links with one message each cost as much as one link with 64. Rows wait until their link has
its turn, so messages keep the order in which they were received.

Source: docs/decisions/0007-sends-by-likeness.md; docs/performance.md, "A send".
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from tandemq.broker.link import NO_LIKENESS, Likeness, Link
from tandemq.codec.frame import RawFrame
from tandemq.codec.sendheader import SendRun
from tandemq.storage.rows import Row

if TYPE_CHECKING:
    from tandemq.broker.send import SendPath

RUN_MIN = 4
"""Fewer frames are read faster one by one."""
RUNS_MAX = 64
"""So many lengths of frames are known of messages that are alike."""
BYTES_MAX = 1 << 20
"""So much is put together at once: more gains nothing and takes memory."""
_lengths = Struct(">II").pack
_Piece = tuple[Link, bytes]


class Together:
    """Reads ahead what the links of one turn have in common."""

    def __init__(self, owner: "SendPath") -> None:
        """`owner` gets the rows."""
        self._owner = owner
        self._read: dict[int, tuple[Likeness, list[Row], bytes]] = {}
        """Messages read and not yet taken, by link, and the bytes behind them."""

    def read(self, links: Mapping[int, Link], received: Sequence[tuple[int, bytes]]) -> None:
        """Read what lies whole at the beginning of what each link brought to this turn.

        Cost: half a microsecond per link; then see `SendRun.read`.
        """
        self._read.clear()
        found: dict[SendRun, list[_Piece]] = {}
        for number, data in dict(reversed(received)).items():  # of each link what it brought first
            link = links.get(number)
            run = None if link is None else link.likeness.runs.get(data[:8])
            if link is None or run is None or len(data) < run.frame_bytes or not link.decoder.is_between_frames:
                continue
            if run in found:
                found[run].append((link, data))
            else:
                found[run] = [(link, data)]
        for run, pieces in found.items():
            self._read_pieces(run, pieces)

    def _read_pieces(self, run: SendRun, pieces: Sequence[_Piece]) -> None:
        """Read them all at once, or each half of them if they are many bytes or not all alike."""
        counts = [len(data) // run.frame_bytes for _, data in pieces]
        count = sum(counts)
        if count < RUN_MIN:
            return
        is_much = count * run.frame_bytes > BYTES_MAX
        if (is_much or not self._read_alike(run, pieces, counts)) and len(pieces) > 1:
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
        topic, _, queues, layout, flag, sys_flag, command_flag, _ = like
        encoded = topic.encoded
        origins: list[tuple[int, bytes]] = []
        for (link, _), count in zip(pieces, counts, strict=True):
            origins += ((link.number, link.born_host),) * count
        try:
            rows: list[Row] = [
                (queues[queue_id], encoded, layout, unique, body, flag, sys_flag, int(born_ms), born_host, number,
                 opaque, command_flag)
                for queue_id, born_ms, unique, opaque, body, (number, born_host) in zip(*sends, origins, strict=True)
            ]  # fmt: skip
        except KeyError:  # a queue that none of these links has sent to
            return False
        at = 0
        for (link, data), count, whole in zip(pieces, counts, wholes, strict=True):
            self._read[link.number] = like, rows[at : at + count], data[len(whole) :]
            at += count
        return True

    def take(self, link: Link, data: bytes) -> bytes:
        """Hand over what was read of a link's bytes; returns those that are still to read.

        All of them if none were, or if meanwhile the topic was made anew, or messages are refused.
        """
        read = self._read.pop(link.number, None)
        if read is None:
            return data
        like, rows, rest = read
        owner = self._owner
        if owner.topics.table.get(like.topic.config.topic_name) is not like.topic or not owner.takes_alike(link):
            return data
        owner.rows += rows
        return rest

    def learn(self, link: Link, frame: RawFrame) -> None:
        """A length that a link's frames have twice in a row is likely to come again: know it from now on."""
        _, header, body = frame
        like, size = link.likeness, len(header) + len(body)
        if link.frame_bytes != size or like is NO_LIKENESS:
            link.frame_bytes = size
            return
        lengths = _lengths(4 + size, len(header))
        if lengths not in like.runs and body and like.matches(header) is not None:
            if len(like.runs) >= RUNS_MAX:
                like.runs.clear()
            like.runs[lengths] = SendRun(header, len(body))
