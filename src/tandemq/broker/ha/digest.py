"""Checksums of ranges of the commit log, for a tool that compares running replicas.

    request   offset, size                     response   size covered, CRC32, log start and log end

A response covers at most `DIGEST_BYTES_MAX` and never crosses the end of a file or of the log, so a request costs the
broker about a millisecond. A range that was deleted is answered with size 0 and the log start.

Source: docs/internals/ha.md, "comparing replicas".
"""

import msgspec
from isal.isal_zlib import crc32

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import OffsetGone
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

DIGEST_BYTES_MAX = 1 << 20


class DigestFields(msgspec.Struct):
    """TANDEM_LOG_DIGEST (7302): a range of the commit log."""

    offset: int
    size: int


class DigestProcessor(Feature):
    """Answer checksums of ranges of the commit log."""

    def __init__(self, kernel: Kernel) -> None:
        """Take the store whose log is compared."""
        self._store = kernel.store

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.TANDEM_LOG_DIGEST: Request(self._on_digest)}

    def _on_digest(self, _link: Link, command: Command, _now: Now) -> Command | None:
        wanted = read_fields(DigestFields, command.fields)
        if wanted.offset < 0 or wanted.size < 0:
            return command.answer(ResponseCode.INVALID_PARAMETER, remark="offset and size are 0 at least")
        log = self._store.log
        size = min(wanted.size, DIGEST_BYTES_MAX, log.written_end - wanted.offset)
        try:
            # From the files: bytes of the last write that are still in memory are not what is compared.
            data = log.read_raw(wanted.offset, size) if size > 0 else b""
        except OffsetGone:
            data = b""
        fields = {
            "offset": str(wanted.offset),
            "size": str(len(data)),
            "crc": str(crc32(data)),
            "logStart": str(log.start),
            "logEnd": str(log.written_end),
        }
        return command.answer(ResponseCode.SUCCESS, fields=fields)
