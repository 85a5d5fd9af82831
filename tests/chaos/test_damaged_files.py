"""Files that `make chaos` damages while a broker is down: each kind of each file, and no other file."""

from pathlib import Path
from random import Random

from chaos.damaged_files import KINDS, copies, damage

_FILES = ("consumequeue/T/0/00000000000000000000", "index/20260101000000000", "tandemq.marks", "config/scrub.json")
_OTHERS = ("commitlog/00000000000000000000", "config/topics.json")


def test_every_kind_strikes_derived_files_only(tmp_path: Path) -> None:
    seen = set()
    for seed in range(400):
        store = tmp_path / str(seed)
        for name in (*_FILES, *_OTHERS):
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(b"older bytes")
        older = copies(store)
        for name in _FILES:
            (store / name).write_bytes(b"bytes of now")
        path, kind = damage(store, older, Random(seed))
        for name in (*_FILES, *_OTHERS):
            before = b"older bytes" if name in _OTHERS else b"bytes of now"
            if name == path:
                found = (store / name).read_bytes() if (store / name).exists() else None
                assert {
                    "empty": found == b"",
                    "cut": found is not None and before.startswith(found),
                    "missing": found is None,
                    "older": found == b"older bytes",
                }[kind]
                seen.add((name, kind))
            else:
                assert (store / name).read_bytes() == before
    assert seen == {(name, kind) for name in _FILES for kind in KINDS}


def test_store_without_such_files_is_left_alone(tmp_path: Path) -> None:
    assert damage(tmp_path, copies(tmp_path), Random(1)) == ("", "")
