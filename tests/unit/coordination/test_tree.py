"""Changes, limits and exact times of the tree, which tests/unit/boundary/test_registry.py does not cover."""

from random import Random

import pytest

from tandemq.coordination.registry import tree as module
from tandemq.coordination.registry.interface import (
    PERSISTENT,
    Create,
    Delete,
    Done,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Read,
    ReadChildren,
    RegistryRefused,
    Write,
)
from tandemq.coordination.registry.tree import NodeCreated, NodeDeleted, SessionEnded, Tree
from tandemq.errors import RemoteError


def a_life(seed: int, steps: int) -> tuple[Tree, list[module.Change]]:
    """Return a tree after random operations, and all its changes."""
    random, tree, now_ms = Random(seed), Tree(), 0
    changes: list[module.Change] = []
    for _ in range(steps):
        now_ms += random.randrange(50)
        tree.expire(now_ms)
        sessions = [n for n in range(1, tree.last_session + 1) if tree.touch(n, now_ms)]
        if not sessions or random.random() < 0.05:
            tree.open_session(random.choice((500, 5_000)), "me", now_ms)
        elif random.random() < 0.05:
            tree.close_session(random.choice(sessions))
        else:
            path = f"/{random.choice('ab')}/{random.choice('cd')}/{random.randrange(3)}"[: random.choice((2, 4, 6))]
            version = random.randrange(4)
            operation: Operation = random.choice(
                (
                    Read(path, watch=True),
                    ReadChildren(path, watch=True),
                    Delete(path, version),
                    Create(path, random.randbytes(3), random.random() < 0.5),
                    Write(path, random.randbytes(5), version),
                )
            )
            tree.execute(random.choice(sessions), operation)
        changes += tree.take_changes()
    return tree, changes


@pytest.mark.parametrize("seed", range(20))
def test_same_changes_give_the_same_tree(seed: int) -> None:
    tree, changes = a_life(seed, 400)
    assert len(changes) > 50
    replayed, copied = Tree(), Tree()
    replayed.restore(changes)
    copied.restore(tree.snapshot())
    assert replayed.snapshot() == copied.snapshot() == tree.snapshot()
    assert replayed.last_session == tree.last_session
    assert not replayed.take_changes()
    assert not replayed.take_fired()


@pytest.mark.parametrize(
    "change", [NodeDeleted("/a"), NodeCreated("/a/b", b""), SessionEnded(1), NodeCreated("/a", b"", 9)]
)
def test_inapplicable_change_is_an_error(change: module.Change) -> None:
    with pytest.raises(ValueError, match="cannot be applied"):
        Tree().restore([change])


def test_session_expires_exactly_after_its_timeout() -> None:
    tree = Tree()
    session = tree.open_session(1_000, "me", 5_000)
    tree.execute(session, Create("/live", b"", ephemeral=True))
    assert tree.deadline_ms() == 6_001
    assert tree.expire(6_000) == []
    assert tree.touch(session, 6_000)
    assert tree.expire(7_000) == []
    assert tree.expire(7_001) == [session]
    assert not tree.touch(session, 7_001)
    assert tree.deadline_ms() is None
    other = tree.open_session(1_000, "other", 7_001)
    assert other > session
    assert tree.execute(other, Read("/live")) == NodeMissing()


def test_restored_session_has_its_full_timeout_and_its_nodes() -> None:
    before = Tree()
    session = before.open_session(1_000, "me", 0)
    before.execute(session, Create("/live", b"x", ephemeral=True))
    tree = Tree()
    tree.restore(before.snapshot())
    assert tree.expire(900_000) == []
    assert tree.execute(session, Read("/live")) == NodeFound(b"x", 0, session)
    assert tree.expire(901_001) == [session]


def test_session_is_only_resumed_by_its_client_name() -> None:
    tree = Tree()
    session = tree.open_session(1_000, "me", 0)
    tree.execute(session, Read("/a", watch=True))
    assert not tree.resume_session(session, "somebody", 1)
    assert not tree.resume_session(session + 1, "me", 1)
    assert tree.resume_session(session, "me", 1)
    tree.execute(session, Create("/a", b""))
    assert tree.take_fired() == [], "watches are void after a session was resumed"


def test_timeouts_are_limited() -> None:
    tree = Tree()
    assert tree.timeout_ms(tree.open_session(1, "a", 0)) == module.TIMEOUT_MS_MIN
    assert tree.timeout_ms(tree.open_session(1 << 40, "b", 0)) == module.TIMEOUT_MS_MAX


def test_tree_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("NODES_MAX", 4), ("BYTES_MAX", 100), ("SESSIONS_MAX", 1), ("WATCHES_MAX", 2)):
        monkeypatch.setattr(module, name, limit)
    tree = Tree()
    session = tree.open_session(1_000, "me", 0)
    with pytest.raises(RemoteError, match="1 sessions"):
        tree.open_session(1_000, "other", 0)
    assert tree.execute(session, Create("/a/b", bytes(60))) == Done(0)
    assert isinstance(tree.execute(session, Create("/c/d", b"")), RegistryRefused)
    assert isinstance(tree.execute(session, Write("/a/b", bytes(101), 0)), RegistryRefused)
    assert tree.execute(session, Write("/a/b", bytes(100), 0)) == Done(1)
    assert isinstance(tree.execute(session, Create("/c", b"x")), RegistryRefused)
    assert tree.execute(session, Create("/c", b"")) == Done(0)
    assert tree.execute(session, Read("/a", watch=True)) == NodeFound(b"", 0, PERSISTENT)
    assert tree.execute(session, ReadChildren("/a", watch=True)) == Names(("b",))
    assert isinstance(tree.execute(session, Read("/c", watch=True)), RegistryRefused)
    assert tree.execute(session, Read("/a", watch=True)) == NodeFound(b"", 0, PERSISTENT)
