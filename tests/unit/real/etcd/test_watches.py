"""One-shot watches: which changes fire them, whatever arrives first."""

import pytest

from tandemq.real.etcd.watches import Watches


def watched(path: str, *, children: bool = False, revision: int = 10) -> Watches:
    watches = Watches(revision)
    watches.begin(path, children=children)
    assert watches.end(revision) is None
    return watches


@pytest.mark.parametrize(
    ("children", "changed", "is_written", "fired"),
    [
        (False, "/g/a", True, ["/g/a"]),
        (False, "/g/a", False, ["/g/a"]),
        (False, "/g/a/b", False, []),
        (False, "/g/ab", False, []),
        (True, "/g/a", False, ["/g/a"]),
        (True, "/g/a", True, []),
        (True, "/g/a/b", False, ["/g/a"]),
        (True, "/g/a/b", True, []),
        (True, "/g/a/b/c", False, []),
    ],
)
def test_watch_fires_for_its_path_or_its_children(
    children: bool, changed: str, is_written: bool, fired: list[str]
) -> None:
    watches = watched("/g/a", children=children)
    assert watches.change(changed, 11, is_written=is_written) == fired
    assert watches.change(changed, 12, is_written=is_written) == [], "it fires once"
    assert watches.seen == 12


def test_change_that_the_read_contains_does_not_fire() -> None:
    watches = watched("/g/a", revision=10)
    assert watches.change("/g/a", 10, is_written=True) == []
    assert watches.change("/g/a", 11, is_written=True) == ["/g/a"]


def test_change_before_the_answer_of_the_read_counts_by_its_revision() -> None:
    for revision, fires in ((11, None), (10, "/g/a")):
        watches = Watches(5)
        watches.begin("/g/a", children=False)
        assert watches.change("/g/a", 11, is_written=True) == []
        assert watches.end(revision) == fires, revision
        assert watches.change("/g/a", 12, is_written=True) == ([] if fires else ["/g/a"]), revision


def test_repeated_watch_fires_once_for_the_older_read() -> None:
    watches = watched("/g/a", revision=10)
    watches.begin("/g/a", children=False)
    assert watches.end(12) is None
    assert watches.change("/g/a", 11, is_written=True) == ["/g/a"]
    assert watches.change("/g/a", 13, is_written=True) == []


def test_refused_read_leaves_no_watch() -> None:
    watches = Watches(5)
    watches.begin("/g/a", children=False)
    watches.cancel()
    assert watches.change("/g/a", 6, is_written=True) == []


def test_compaction_fires_what_may_have_changed() -> None:
    watches = watched("/g/old", revision=10)
    watches.begin("/g/new", children=True)
    assert watches.end(60) is None
    watches.begin("/g/reading", children=False)
    assert watches.compacted(50) == ["/g/old"]
    assert watches.seen == 49
    assert watches.end(48) == "/g/reading"
    assert watches.change("/g/new", 61, is_written=False) == ["/g/new"]
    assert watches.compacted(50) == [], "nothing unseen is gone"


def test_directory_grows_to_the_common_one() -> None:
    watches = Watches(1)
    grown = []
    for path in ("/t/m/g/a/config", "/t/m/g/a/live/1", "/t/m/g/ab/config", "/t/m/g/a/state", "/other"):
        grown.append((watches.begin(path, children=False), watches.directory))
        watches.cancel()
    assert grown == [
        (True, "/t/m/g/a"),
        (False, "/t/m/g/a"),
        (True, "/t/m/g"),
        (False, "/t/m/g"),
        (True, ""),
    ]
