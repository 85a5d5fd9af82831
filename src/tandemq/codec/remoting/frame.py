"""Remoting frames.

    length      4   bytes that follow = 4 + header length + body length
    header word 4   high byte: form of the header (0 JSON, 1 binary); low 24 bits: header length
    header
    body

Source: docs/internals/remoting.md, "frame"; RocketMQ NettyDecoder, RemotingCommand.
"""

from struct import Struct

import msgspec

from tandemq.boundary import Buffer
from tandemq.codec.remoting.header import FORM_BINARY, FORM_JSON, decode_header, encode_header
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.errors import FrameError
from tandemq.model.command import FLAG_ONEWAY, LANGUAGE_SPOKEN, VERSION_SPOKEN, Command

FRAME_BYTES_MAX = 16_777_216
REMARK_CHARACTERS_MAX = 32 << 10
LARGE_FRAME_BYTES = 16 << 10
"""From this size on a frame is also given in the parts in which it arrived: joining them costs a copy."""
MERGED_PIECES = 128
SMALL_PIECE_BYTES = 1024
_PREFIX = Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF
_decode_json = msgspec.json.Decoder().decode
_JSON_END = b'},"flag":%%d,"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
    LANGUAGE_SPOKEN.encode(),
    VERSION_SPOKEN,
)

RawFrame = tuple[int, bytes, bytes]
"""Form of the header, header bytes, body bytes. A plain tuple, since one is created per frame."""


class FrameDecoder:
    """Incremental decoder that splits a byte stream into frames; the stream may arrive in pieces of any size.

    Buffers at most one partial frame (`frame_bytes_max`), as the pieces in which it arrived. Small pieces are merged:
    otherwise a frame that arrives byte by byte would take 40 times its size. The size of the partial frame is reported
    to `partial_frames`, if given, under the id of the connection, with the memory that its first piece keeps besides.
    """

    __slots__ = (
        "_buffered", "_frame_bytes_max", "_link", "_merged", "_needed", "_partial_frames", "_pieces", "_unused",
        "error", "position",
    )  # fmt: skip

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, partial_frames: PartialFrames | None = None, link: int = 0
    ) -> None:
        """Create a decoder for a new stream."""
        self._partial_frames = partial_frames
        self._link = link
        self._pieces: list[Buffer] = []
        self._merged = 0
        """Number of leading pieces that need no merging."""
        self._buffered = 0
        self._needed = 8
        self._unused = 0
        """Bytes that the first piece keeps in memory and that are not of the frame."""
        self._frame_bytes_max = frame_bytes_max
        self.error: FrameError | None = None
        self.position = 0
        """End of the frame that `split` returned last."""

    def feed(self, data: bytes) -> list[RawFrame]:
        """Add received bytes and return the frames they complete.

        At bytes that are not a valid frame `error` is set; the frames before them are returned, and none after them.
        """
        data = self.join(data)
        frames: list[RawFrame] = []
        frame = self.split(data, 0)
        while frame is not None:
            frames.append(frame)
            frame = self.split(data, self.position)
        return frames

    def join(self, data: bytes) -> bytes:
        """Return the bytes to split next: the partial frame and the received bytes; b"" if they complete no frame."""
        if self.error is not None:
            return b""
        if self._pieces:
            self._pieces.append(data)
            self._buffered += len(data)
            if self._buffered < self._needed:
                if len(self._pieces) - self._merged >= MERGED_PIECES:
                    self._merge()
                if self._partial_frames is not None:
                    self._partial_frames.keep(self._link, self._buffered + self._unused)
                return b""
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._merged = 0
            if self._partial_frames is not None:
                self._partial_frames.drop(self._link)
        return data

    def large(self, data: bytes) -> list[Buffer] | None:
        """Return a large frame that received bytes complete, in the parts in which it arrived; None if there is none.

        Nothing changes: the owner calls `take_large` if it has taken the frame, otherwise `join`.
        """
        if not self._pieces or self._needed < LARGE_FRAME_BYTES or self.error is not None:
            return None
        missing = self._needed - self._buffered
        return [*self._pieces, memoryview(data)[:missing]] if 0 < missing <= len(data) else None

    def take_large(self) -> int:
        """Forget the frame that `large` returned; return its end in the bytes that `large` was given."""
        self.position = self._needed - self._buffered
        self._pieces.clear()
        self._merged = 0
        if self._partial_frames is not None:
            self._partial_frames.drop(self._link)
        return self.position

    def split(self, data: bytes, start: int) -> RawFrame | None:
        """Return the frame at a position of the bytes that `join` returned, and set `position` to its end.

        Returns None, and keeps the rest, if the frame is incomplete; None with `error` set if it is not a frame.
        """
        end = len(data)
        if end - start >= 8:
            length, word = _PREFIX.unpack_from(data, start)
            header_end = start + 8 + (word & _HEADER_LENGTH_MASK)
            stop = start + 4 + length
            if header_end > stop or length + 4 > self._frame_bytes_max:
                self.error = FrameError(f"frame of {length} bytes with a header of {word & _HEADER_LENGTH_MASK} bytes")
                return None
            if stop <= end:
                self.position = stop
                return word >> 24, data[start + 8 : header_end], data[header_end:stop]
        if start < end:
            self._keep(data, start, end)
        return None

    def _merge(self) -> None:
        recent = self._pieces[self._merged :]
        if sum(map(len, recent)) < MERGED_PIECES * SMALL_PIECE_BYTES:
            self._pieces[self._merged :] = [b"".join(recent)]
        self._merged = len(self._pieces)

    def _keep(self, data: bytes, position: int, end: int) -> None:
        self._buffered = end - position
        self._needed = 8
        self._unused = 0
        if position <= self._buffered:  # a view keeps all of the data in memory: it has to be of half of them at least
            self._unused = position
            self._pieces.append(memoryview(data)[position:] if position else data)
        else:
            self._pieces.append(data[position:])
        if self._partial_frames is not None:
            self._partial_frames.keep(self._link, self._buffered + self._unused)
        if self._buffered >= 8:
            self._needed = 4 + int.from_bytes(data[position : position + 4], "big")


class JsonRequest(msgspec.Struct):
    """A request whose header is encoded but for opaque and flag.

    `fields`: the beginning of the JSON header, up to and including the last of its extFields, of which there is one at
    least: `{"code":310,"extFields":{"a":"group"`.
    """

    fields: bytes
    body: bytes

    def as_command(self) -> Command:
        """Return it decoded, to be signed."""
        header = _decode_json(self.fields + b"}}")
        return Command(header["code"], fields=header["extFields"], body=self.body)


def encode_request(request: Command | JsonRequest, opaque: int, *, oneway: bool = False) -> bytes:
    """Encode a request as a frame, with its opaque."""
    if isinstance(request, Command):
        request.opaque = opaque
        if oneway:
            request.flag |= FLAG_ONEWAY
        return encode_command(request)
    fields, body = request.fields, request.body
    end = _JSON_END % (FLAG_ONEWAY if oneway else 0, opaque)
    length = len(fields) + len(end)
    return b"".join((_PREFIX.pack(4 + length + len(body), length), fields, end, body))


def decode_command(frame: RawFrame) -> Command:
    """Decode a frame.

    Raises:
        ProtocolError: the header is malformed.
    """
    form, header, body = frame
    return decode_header(form, header, body)


def encode_command(command: Command) -> bytes:
    """Encode a command as a frame; a long remark is cut, as the length of a header has 24 bits."""
    if command.remark is not None and len(command.remark) > REMARK_CHARACTERS_MAX:
        command = msgspec.structs.replace(command, remark=f"{command.remark[:REMARK_CHARACTERS_MAX]}…")
    return encode_frame((FORM_BINARY if command.binary else FORM_JSON, encode_header(command), command.body))


def encode_frame(frame: RawFrame) -> bytes:
    """Return the bytes of a frame."""
    form, header, body = frame
    return b"".join((_PREFIX.pack(4 + len(header) + len(body), form << 24 | len(header)), header, body))
