"""An audit compares a range piece by piece: the result does not depend on where the pieces end."""

import random
import shutil
from pathlib import Path

import pytest

from tandemq.spark.jobs import audit
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.ranges import split
from tests.spark.logs import LogWriter
from tests.spec import spec


@spec("P05")
def test_differences_do_not_depend_on_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(21)
    for diverges in (False, True):
        first, second = LogWriter(tmp_path / f"a{diverges}"), LogWriter(tmp_path / f"b{diverges}")
        for number in range(400):
            body = rng.randbytes(rng.randint(0, 900))
            first.write(body)
            second.write(body if not diverges or number < 150 else body[::-1])
        for at in (20, 21, 200, 390):
            LogWriter.flip(second, second.made[at].log_offset + rng.randint(90, 100))
        at = next(
            at
            for at in range(100, 140)
            if second.path(second.made[at + 3].log_offset) == second.path(second.made[at].log_offset)
        )
        second.zero(second.made[at].log_offset + 50, second.made[at + 3].log_offset + 20)
        one, other = open_log(first.store), open_log(second.store)
        with LogFileReader(other) as read:
            end = min(first.end, log_end(read))
        monkeypatch.setattr(audit, "BLOCK_BYTES", 512)
        (wanted, *more) = split(one, 0, end, 1 << 30)

        def compared(piece_bytes: int) -> tuple[dict[str, int], list[tuple[str, int]]]:
            monkeypatch.setattr(audit, "PIECE_BYTES", piece_bytes)
            counts, found = dict.fromkeys(audit.KINDS, 0), []
            for part in (wanted, *more):  # noqa: B023
                result = audit.audit_range(one, other, part, listed_max=10_000)  # noqa: B023
                found += [(row["kind"], row["commitLogOffset"]) for row in result["differences"]]
                counts = {kind: counts[kind] + result["counts"][kind] for kind in counts}
            return counts, sorted(found)

        whole = compared(1 << 30)
        assert sum(whole[0].values()) == len(whole[1]) >= (240 if diverges else 6)
        for piece_bytes in (3_000, 7_777, 10_001, 20_480, 40_000):
            assert compared(piece_bytes) == whole, (diverges, piece_bytes)
        shutil.rmtree(first.store)


def test_listed_differences_are_limited_and_all_are_counted(tmp_path: Path) -> None:
    first, second = LogWriter(tmp_path / "a"), LogWriter(tmp_path / "b")
    for number in range(100):
        first.write(b"%03d" % number)
        second.write(b"%03d" % (number + 500))
    one, other = open_log(first.store), open_log(second.store)
    (wanted,) = split(one, 0, first.end)
    result = audit.audit_range(one, other, wanted, listed_max=7)
    assert (len(result["differences"]), result["counts"]["different"], result["filler"]) == (7, 100, 0)
