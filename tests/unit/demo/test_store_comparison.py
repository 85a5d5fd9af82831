"""Store directories compared byte by byte."""

from pathlib import Path

import pytest

from tandemq.demo.store_comparison import compare_stores


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal stores."""
    for name in ("master", "slave"):
        for path, data in (("commitlog/0", b"x" * 3_000_000), ("consumequeue/T/0/0", bytes(40))):
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(data)
        (tmp_path / name / "index").mkdir()
        (tmp_path / name / "index" / name).write_bytes(name.encode())
    return tmp_path / "master", tmp_path / "slave"


def test_equal_stores_compare_equal_without_index_files(stores: tuple[Path, Path]) -> None:
    found = compare_stores(*stores)
    assert (found.files, found.bytes, found.differences) == (2, 3_000_040, [])


@pytest.mark.parametrize("at", [0, 1_048_576, 2_999_999])
def test_difference_is_reported_with_file_and_byte(stores: tuple[Path, Path], at: int) -> None:
    with (stores[1] / "commitlog" / "0").open("r+b") as file:
        file.seek(at)
        file.write(b"y")
    assert compare_stores(*stores).differences == [f"commitlog/0 differs at byte {at}"]


def test_longer_or_missing_file_is_reported(stores: tuple[Path, Path]) -> None:
    for store, size in zip(stores, (1 << 20, 2 << 20), strict=True):
        (store / "commitlog" / "0").write_bytes(bytes(size))
    (stores[0] / "consumequeue" / "T" / "0" / "0").unlink()
    longer, missing = compare_stores(*stores).differences
    assert longer == "commitlog/0 has 1048576 bytes here and 2097152 there"
    assert missing == "consumequeue/T/0/0 is missing in master"
