"""The files of RocketMQ 5 for timed messages, written for a Java broker that gets the store.

    timerwheel   slots of 32 bytes: time / precision 8, first position 8, last position 8, number 4, magic 4
    timerlog/    units of 52 bytes: size 4, previous position of the slot 8, magic 4, write time 8, delay 4,
                 log offset 8, record size 4, hash of the topic 4, reserved 8

Wheel and log are written at a clean stop. While a broker runs, it writes the check file alone: then a Java broker reads
from the oldest waiting message.

A slot is at (time / precision) mod 1,209,600. Its units form a list from the last to the first. A Java broker goes on
with the record behind that of the last unit in the log: if that would be one that is over, a unit of a time that is
over names the last record. TandemQ itself does not read the files: it has the log.

Source: docs/reference/timers.md; RocketMQ TimerWheel, TimerLog, TimerMessageStore.
"""

import logging
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from tandemq.boundary import Disk, File, Job, JobDone, Now, Turn
from tandemq.broker.features.timers.pending import PendingTimers, roll_time
from tandemq.broker.features.timers.timer_check import PATH, TimerCheck
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.kernel.messages.timed_message import rounded_down
from tandemq.errors import StoreError
from tandemq.model.java_hash import cached_java_hash
from tandemq.storage.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)
WHEEL = "timerwheel"
LOG = "timerlog"
SLOTS = 604_800 * 2
LOG_FILE_BYTES = 100 << 20
_SLOT = Struct(">qqqii")
_UNIT = Struct(">iqiqiqiiq")
_BLANK = Struct(">iqi")
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_DEFAULT, _ROLL, _DELETE = 1, 2, 4
_WRITE_BYTES = 1 << 20


class _Unit(NamedTuple):
    queue_offset: int
    slot_ms: int
    magic: int
    topic: str


class _SlotEnds(NamedTuple):
    oldest: int
    newest: int
    number: int


class _LogWriter:
    """The timer log, unit by unit."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None
        self._pending = bytearray()
        self._written = 0
        """Position up to which units are in their files."""

    @property
    def position(self) -> int:
        """Position of the next unit."""
        return self._written + len(self._pending)

    def add(self, unit: bytes) -> int:
        """Append a unit; return its position."""
        left = LOG_FILE_BYTES - self.position % LOG_FILE_BYTES
        if left < len(unit) + _BLANK.size:
            self._pending += _BLANK.pack(left, 0, _BLANK_MAGIC)
            self.flush()
            self._written += left - _BLANK.size
            self._file = None
        position = self.position
        self._pending += unit
        if len(self._pending) >= _WRITE_BYTES:
            self.flush()
        return position

    def flush(self) -> None:
        """Write and sync the buffered bytes."""
        if not self._pending:
            return
        if self._file is None:
            start = self._written - self._written % LOG_FILE_BYTES
            self._file = self._disk.open(f"{LOG}/{start:020d}", create=True)
            self._file.truncate(LOG_FILE_BYTES)
        self._file.pwrite(bytes(self._pending), self._written % LOG_FILE_BYTES)
        self._file.datasync()
        self._written += len(self._pending)
        self._pending.clear()


class JavaFiles:
    """The files of one broker."""

    def __init__(self, disk: Disk, turn: CurrentTurn) -> None:
        """`disk`: the store directory."""
        self._disk = disk
        self._turn = turn
        self._is_saving = False
        self._saved: TimerCheck | None = None
        """As in the file, or being written; None: unknown."""

    def remove(self) -> None:
        """Remove the wheel and log of a Java broker or of the last clean stop: they are out of date."""
        self._disk.remove(WHEEL)
        self._disk.remove(LOG)

    def save_check(self, check: TimerCheck) -> None:
        """Write the check file in a job, if it has changed and none is being written."""
        if self._is_saving or (self._saved is not None and check[:4] == self._saved[:4]):
            return
        data = check.as_file()
        self._saved = check
        self._is_saving = True
        job = Job("save timercheck", lambda: self._disk.replace(PATH, data), self._saved_check)
        self._turn.out.jobs.append(job)

    def _saved_check(self, event: JobDone, _turn: Turn, _now: Now) -> None:
        self._is_saving = False
        if event.error is not None:
            log.warning("timers: %s could not be written: %s", PATH, event.error)
            self._saved = None

    def write_all(
        self, table: PendingTimers, timers: ConsumeQueue, check: TimerCheck, window_ms: int, precision_ms: int
    ) -> None:
        """Write wheel, log and check file; blocking. A failure is logged.

        Args:
            table: the messages that wait.
            timers: the queue of the wheel topic.
            check: progress at the stop; its log position is filled in.
            window_ms: time after which a message is stored again.
            precision_ms: unit of the times.
        """
        try:
            self.remove()
            check = check._replace(log_position=self._write_wheel(table, timers, check, window_ms, precision_ms))
            self._disk.replace(PATH, check.as_file())
        except StoreError as error:
            log.error("timers: the files for Java brokers could not be written: %s", error)

    def _write_wheel(
        self, table: PendingTimers, timers: ConsumeQueue, check: TimerCheck, window_ms: int, precision_ms: int
    ) -> int:
        """Write wheel and log; return the end of the log."""
        wheel, writer = self._disk.open(WHEEL, create=True), _LogWriter(self._disk)
        wheel.truncate(SLOTS * _SLOT.size)
        ends: dict[int, _SlotEnds] = {}
        write_ms = rounded_down(check.timestamp, precision_ms)
        units = sorted(_units(table, write_ms, window_ms))
        last = check.queue_offset - 1
        if units and units[-1].queue_offset < last:
            units.append(_Unit(last, check.read_ms - precision_ms, _DEFAULT, ""))
        for unit in units:
            entry = timers.entry(unit.queue_offset)
            slot = ends.get(unit.slot_ms)
            position = writer.add(
                _UNIT.pack(
                    _UNIT.size,
                    slot.newest if slot is not None else -1,
                    unit.magic,
                    min(write_ms, unit.slot_ms),
                    max(0, unit.slot_ms - write_ms),
                    entry.log_offset,
                    entry.size,
                    cached_java_hash(unit.topic),
                    0,
                )
            )
            change = -1 if unit.magic & _DELETE else 1
            first, number = (slot.oldest, slot.number) if slot is not None else (position, 0)
            ends[unit.slot_ms] = _SlotEnds(first, position, number + change)
        writer.flush()
        for slot_ms, slot in ends.items():
            number = slot_ms // precision_ms
            wheel.pwrite(_SLOT.pack(number, slot.oldest, slot.newest, slot.number, 0), number % SLOTS * _SLOT.size)
        wheel.datasync()
        return writer.position


def _units(table: PendingTimers, write_ms: int, window_ms: int) -> Iterator[_Unit]:
    for out_ms, slot in table.slots.items():
        slot_ms, roll = out_ms, 0
        if out_ms - write_ms >= window_ms:
            slot_ms, roll = roll_time(out_ms, write_ms, window_ms), _ROLL
        for queue_offset, number in zip(slot.messages, slot.message_topics, strict=True):
            yield _Unit(queue_offset, slot_ms, _DEFAULT | roll, table.topics[number])
        for queue_offset, number in zip(slot.deletes, slot.delete_topics, strict=True):
            yield _Unit(queue_offset, slot_ms, _DEFAULT | _DELETE | roll, table.topics[number])
