"""Epoch table of a log: which master wrote which part, to find the offset at which two logs diverge.

A master that accepts the loss of its log's tail begins a new epoch at its log end; a slave quarantines bytes of the old
epoch after that offset. The file has RocketMQ 5's format: number of entries, CRC of the rest, then
`epoch-startOffset` per line. There are two copies, since a master without the table shares no history with its slaves;
RocketMQ, too, reads the second copy if it cannot read the first.

Source: docs/internals/ha.md, "between TandemQ brokers"; RocketMQ EpochFileCache.
"""

import zlib

from tandemq.boundary import Disk
from tandemq.errors import StoreDamaged

FILE = "epochFileCheckpoint"
COPIES = (FILE, f"{FILE}.bak")

EpochTable = list[tuple[int, int]]
"""(epoch, start offset), ascending in both."""


def load_epochs(disk: Disk) -> EpochTable:
    """Return the table, [] if there is none.

    Raises:
        StoreDamaged: neither the file nor its .bak can be read.
    """
    fault = ""
    for path in COPIES:
        data = disk.read(path)
        if not data:
            continue
        try:
            return _parse(data.decode())
        except ValueError as error:
            fault = f"{path}: {error}"
    if fault:
        raise StoreDamaged(fault, hint="copy the file from another member of the group, whose history is the same")
    return []


def _parse(text: str) -> EpochTable:
    count, crc, *lines = text.split("\n")
    lines = [line for line in lines if line]
    rest = "".join(line + "\n" for line in lines).encode()
    if int(crc) and int(crc) != zlib.crc32(rest) & 0x7FFFFFFF:
        raise ValueError("its checksum is wrong")
    if int(count) != len(lines):
        raise ValueError(f"its header states {count} entries, but it has {len(lines)}")
    pairs = [(int(epoch), int(start)) for epoch, start in (line.split("-") for line in lines)]
    starts = [start for _, start in pairs]
    if [epoch for epoch, _ in pairs] != sorted({epoch for epoch, _ in pairs}) or starts != sorted(starts):
        raise ValueError("its entries are not in order")
    return pairs


def save_epochs(disk: Disk, pairs: EpochTable) -> None:
    """Replace the table, one copy after the other, so that one of them is valid at any time."""
    rest = "".join(f"{epoch}-{start}\n" for epoch, start in pairs).encode()
    head = f"{len(pairs)}\n{zlib.crc32(rest) & 0x7FFFFFFF}\n".encode()
    for path in COPIES:
        disk.replace(path, head + rest)


def restore_epoch_copies(disk: Disk, pairs: EpochTable) -> None:
    """Restore the second copy of a loaded table if it is missing or damaged.

    Raises:
        DiskFull, DiskFailed: the copy could not be written.
    """
    if pairs and len({disk.read(path) for path in COPIES}) > 1:
        save_epochs(disk, pairs)


def common_end(ours: EpochTable, our_end: int, theirs: EpochTable, their_end: int) -> int | None:
    """Return the log offset up to which two logs are equal; None if the logs have no epoch in common.

    A table may name epochs that begin after the end of its log, if a power loss destroyed that part.
    """
    for position in range(len(theirs) - 1, -1, -1):
        pair = theirs[position]
        if pair in ours:
            own_position = ours.index(pair)
            our_stop = ours[own_position + 1][1] if own_position + 1 < len(ours) else our_end
            their_stop = theirs[position + 1][1] if position + 1 < len(theirs) else their_end
            return min(our_stop, our_end, their_stop, their_end)
    return None
