"""What other members of the group ask about this broker's log: records for a repair, and checks of suspect ones."""

import logging
from functools import partial

import msgspec

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.features.scrub.repair import PIECE_BYTES, context_size, generations_text
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.broker.features.scrub.verify_job import Context, Served, ServeWork, Wanted
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.java_types import Int64
from tandemq.model.peers import host_of
from tandemq.model.text import brief
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
HEAD_BYTES = 64 << 10
"""Part of the frame limit kept for what a response has besides its records."""
SERVING_MAX = 4
"""Maximum number of requests for records that are read at the same time."""


class RecordsFields(msgspec.Struct, rename="camel"):
    """TANDEM_LOG_RECORDS (7303): a damaged range of the log, and how many bytes next to it to compare."""

    offset: Int64
    size: Int64
    before: int = 0
    behind: int = 0


class SuspectFields(msgspec.Struct, rename="camel"):
    """TANDEM_LOG_SUSPECT (7304): a record of ours that arrived damaged at a slave again and again."""

    offset: Int64
    broker_id: int
    reason: str = ""


class ReplicaRequests(Feature):
    """Serves the requests of other members."""

    def __init__(self, kernel: Kernel, scrubber: Scrubber) -> None:
        """Begin."""
        self._store = kernel.store
        self._generations = kernel.generations
        self._scrubber = scrubber
        self._members = kernel.members
        self._links = kernel.links
        self._current = kernel.current
        self._turn = kernel.turn
        self._serving = 0
        """By id of the job: who asked, and how the result becomes a response."""
        self._reports = Refusals()
        """Reports of damaged records, by host."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.TANDEM_LOG_RECORDS: Request(self._on_records, is_of_member=True),
            Code.TANDEM_LOG_SUSPECT: Request(self._on_suspect, is_of_member=True),
        }

    def _on_records(self, link: Link, command: Command, _now: Now) -> Command | None:
        wanted = read_fields(RecordsFields, command.fields)
        store_log, segment = self._store.log, self._store.config.segment_bytes
        start, end = wanted.offset, wanted.offset + wanted.size
        if start < 0 or wanted.size <= 0 or start % segment + wanted.size > segment:
            return command.answer(ResponseCode.INVALID_PARAMETER, remark="a range of one log file is expected")
        if not store_log.start <= start < end <= store_log.written_end:
            held = f"[{store_log.start}, {store_log.written_end})"
            return self._answer(command, Served(b"", Context(0, 0), Context(0, 0), f"held here are {held} only"))
        if self._serving >= SERVING_MAX:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark="other replicas are being served; ask again")
        work = ServeWork(
            self._store.disk,
            segment,
            Wanted(start, end, context_size(wanted.before), context_size(wanted.behind)),
            store_log.start,
            store_log.written_end,
            PIECE_BYTES,
            self._current.config.frame_bytes_max - HEAD_BYTES,
        )
        self._serving += 1
        self._turn.out.jobs.append(Job("serve records", work.run, done=partial(self._served, link, command)))
        return None

    def _served(self, link: Link, command: Command, event: JobDone, turn: Turn, _now: Now) -> None:
        self._serving -= 1
        served = event.result
        if not isinstance(served, Served):
            served = Served(b"", Context(0, 0), Context(0, 0), f"it cannot be read here: {event.error}")
        if link.number in self._links:
            answer = self._members.sealed(command, self._answer(command, served))
            turn.send(link.number, encode_command(answer))

    def _answer(self, command: Command, served: Served) -> Command:
        config, store_log = self._current.config, self._store.log
        fields = {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "logStart": str(store_log.start),
            "logEnd": str(store_log.written_end),
            "generations": generations_text(self._generations.pairs),
            "beforeSize": str(served.before.size),
            "beforeCrc": str(served.before.crc),
            "behindSize": str(served.behind.size),
            "behindCrc": str(served.behind.crc),
            "fault": served.fault,
        }
        return command.answer(ResponseCode.SUCCESS, fields=fields, body=served.data)

    def _on_suspect(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(SuspectFields, command.fields)
        reason = brief(fields.reason)
        # Without a secret anyone can send this, so it is a report until the record was verified.
        times = self._reports.note(host_of(link.peer), now.mono_ms)
        if times:
            log.warning(
                "repair: slave %d at %s reports that the record at log offset %d arrived damaged, it is verified now: "
                "times=%d reason=%r",
                fields.broker_id,
                link.peer,
                fields.offset,
                times,
                reason,
            )
        self._scrubber.look_at(fields.offset, f"broker {fields.broker_id}", reason, now)
        return command.answer(ResponseCode.SUCCESS)
