"""One suite for every registry: the same operations, outcomes and events, whoever carries them out.

ZooKeeper and etcd take part in `make services`.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tandemq.registry import (
    DATA_BYTES_MAX,
    PERSISTENT,
    Confirmed,
    Conflict,
    Create,
    Delete,
    Done,
    Exists,
    Guard,
    Names,
    NodeFound,
    NodeMissing,
    Read,
    ReadChildren,
    RegistryRefused,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tests.unit.boundary.registries import LONG_MS, PROCESSES, SHORT_MS, START_MS, Place, Session, open_place, sessions

Begin = Callable[..., Session]
pytestmark = pytest.mark.timeout(240)  # the first run fetches ZooKeeper
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["tree", *PROCESSES])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    opened = open_place(request.param, tmp_path_factory.mktemp(request.param))
    yield opened
    opened.close()


@pytest.fixture
def begin(place: Place) -> Iterator[Begin]:
    with sessions(place) as given:
        yield given


@pytest.fixture
def root() -> str:
    """A path of this test alone."""
    return f"/tandemq/test-{next(_numbers)}"


def test_a_node_is_created_read_written_and_deleted_by_version(begin: Begin, root: str) -> None:
    me = begin()
    assert me.do(Read(root)) == NodeMissing()
    assert me.do(Create(root, b"one")) == Done(0)
    assert me.do(Create(root, b"two")) == Exists()
    assert me.do(Read(root)) == NodeFound(b"one", 0, PERSISTENT)
    assert me.do(Write(root, b"two", 0)) == Done(1)
    assert me.do(Write(root, b"three", 0)) == Conflict()
    assert me.do(Write(root, b"", 1)) == Done(2)
    assert me.do(Read(root)) == NodeFound(b"", 2, PERSISTENT)
    assert me.do(Delete(root, 1)) == Conflict()
    assert me.do(Delete(root, 2)) == Done(2)
    assert me.do(Delete(root, 2)) == NodeMissing()
    assert me.do(Write(root, b"x", 2)) == NodeMissing()
    assert me.do(Create(root, b"again")) == Done(0)


def test_a_write_happens_only_while_its_guard_holds(begin: Begin, root: str) -> None:
    me, node, other = begin(), f"{root}/node", f"{root}/guard"
    assert me.do(Create(node, b"0")) == Done(0)
    assert me.do(Write(node, b"1", 0, Guard(other, 0))) == Conflict(), "the guard is missing"
    assert me.do(Create(other, b"")) == Done(0)
    assert me.do(Write(node, b"1", 0, Guard(other, 0))) == Done(1)
    assert me.do(Write(other, b"", 0)) == Done(1)
    assert me.do(Write(node, b"2", 1, Guard(other, 0))) == Conflict()
    assert me.do(Write(node, b"2", 0, Guard(other, 1))) == Conflict()
    assert me.do(Write(f"{root}/none", b"", 0, Guard(other, 1))) == NodeMissing()
    assert isinstance(me.do(Write(node, b"2", 1, Guard("/", 1))), RegistryRefused)
    assert me.do(Read(node, watch=True)) == NodeFound(b"1", 1, PERSISTENT)
    assert me.do(Write(node, b"2", 1, Guard(other, 1))) == Done(2)
    me.until(lambda: me.changed(node) == 1, "told of the write")
    assert me.do(Read(other)) == NodeFound(b"", 1, PERSISTENT), "a guard is not written"


def test_missing_parents_are_made_and_children_are_listed(begin: Begin, root: str) -> None:
    me = begin()
    assert me.do(ReadChildren(root)) == NodeMissing()
    assert me.do(Create(f"{root}/b/x", b"1")) == Done(0)
    assert me.do(Create(f"{root}/a", b"2")) == Done(0)
    assert me.do(ReadChildren(root)) == Names(("a", "b"))
    assert me.do(ReadChildren(f"{root}/a")) == Names(())
    assert me.do(Read(f"{root}/b")) == NodeFound(b"", 0, PERSISTENT)
    assert isinstance(me.do(Delete(f"{root}/b", 0)), RegistryRefused)
    assert me.do(Delete(f"{root}/b/x", 0)) == Done(0)
    assert me.do(Delete(f"{root}/b", 0)) == Done(0)
    assert me.do(ReadChildren(root)) == Names(("a",))


def test_what_no_registry_does_is_refused(begin: Begin, root: str) -> None:
    me = begin()
    for path in ("", "/", "no/slash", "/a//b", "/a/", "/a/../b", "/a\n", "/" + "x" * 2000):
        assert isinstance(me.do(Read(path)), RegistryRefused), path
    assert isinstance(me.do(Create(root, bytes(DATA_BYTES_MAX + 1))), RegistryRefused)
    assert me.do(Create(root, bytes(DATA_BYTES_MAX))) == Done(0)
    assert isinstance(me.do(Write(root, bytes(DATA_BYTES_MAX + 1), 0)), RegistryRefused)
    assert me.do(Read(root)) == NodeFound(bytes(DATA_BYTES_MAX), 0, PERSISTENT)
    assert me.do(Create(f"{root}/e", b"", ephemeral=True)) == Done(0)
    assert isinstance(me.do(Create(f"{root}/e/child", b"")), RegistryRefused)


def test_a_watch_on_data_tells_once(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    me.do(Create(root, b"0"))
    assert me.do(Read(root, watch=True)) == NodeFound(b"0", 0, PERSISTENT)
    assert other.do(Write(root, b"1", 0)) == Done(1)
    me.until(lambda: me.changed(root) == 1, "told of the write")
    assert other.do(Write(root, b"2", 1)) == Done(2)
    assert me.do(Read(root, watch=True)) == NodeFound(b"2", 2, PERSISTENT)
    assert me.changed(root) == 1
    assert other.do(Delete(root, 2)) == Done(2)
    me.until(lambda: me.changed(root) == 2, "told of the deletion")


def test_a_watch_on_what_is_missing_tells_of_its_creation(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    assert me.do(Read(f"{root}/data", watch=True)) == NodeMissing()
    assert me.do(ReadChildren(f"{root}/children", watch=True)) == NodeMissing()
    other.do(Create(f"{root}/data", b""))
    other.do(Create(f"{root}/children/one", b""))
    me.until(lambda: me.changed(f"{root}/data") == 1, "told of the data")
    me.until(lambda: me.changed(f"{root}/children") == 1, "told of the children")


def test_a_watch_on_children_tells_who_comes_and_goes_but_not_of_data(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    other.do(Create(f"{root}/one", b""))
    assert me.do(ReadChildren(root, watch=True)) == Names(("one",))
    other.do(Write(f"{root}/one", b"new", 0))
    other.do(Write(root, b"new", 0))
    assert me.do(ReadChildren(root, watch=True)) == Names(("one",))
    assert me.changed(root) == 0
    other.do(Create(f"{root}/two", b""))
    me.until(lambda: me.changed(root) == 1, "told that one came")
    assert me.do(ReadChildren(root, watch=True)) == Names(("one", "two"))
    other.do(Delete(f"{root}/one", 1))
    me.until(lambda: me.changed(root) == 2, "told that one went")


def test_an_ephemeral_node_has_an_owner_and_goes_with_it(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    assert me.id != other.id
    assert other.do(Create(f"{root}/live/1", b"me", ephemeral=True)) == Done(0)
    assert me.do(Read(f"{root}/live/1", watch=True)) == NodeFound(b"me", 0, other.id)
    assert me.do(Create(f"{root}/live/1", b"", ephemeral=True)) == Exists()
    other.close()
    me.until(lambda: me.changed(f"{root}/live/1") == 1, "told that the owner went")
    assert me.do(Read(f"{root}/live/1")) == NodeMissing()
    assert me.do(ReadChildren(f"{root}/live")) == Names(())


def test_a_session_that_falls_silent_is_suspended_and_then_lost(begin: Begin, root: str) -> None:
    me, other = begin(), begin(SHORT_MS)
    assert other.do(Create(root, b"", ephemeral=True)) == Done(0)
    assert me.do(Read(root, watch=True)) == NodeFound(b"", 0, other.id)
    other.line.silence()
    me.until(lambda: me.changed(root) == 1, "told that the session expired")
    other.wait(SessionSuspended)
    assert other.count(SessionLost) == 0, "nobody could tell it"
    other.line.restore()
    other.wait(SessionLost)
    other.wait(SessionUp, 2)
    assert len({event.session_id for event in other.told if isinstance(event, SessionUp)}) == 2
    kinds = [type(event) for event in other.told if isinstance(event, SessionUp | SessionSuspended | SessionLost)]
    assert kinds == [SessionUp, SessionSuspended, SessionLost, SessionUp]
    assert other.do(Create(root, b"", ephemeral=True)) == Done(0)


def test_a_session_outlives_a_broken_connection_and_so_do_its_nodes(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    other.do(Create(root, b"", ephemeral=True))
    before = other.id
    me.do(Read(root, watch=True))
    other.line.cut()
    other.wait(SessionSuspended)
    other.wait(SessionUp, 2)
    assert other.id == before
    assert other.count(SessionLost) == 0
    assert other.do(Read(root)) == NodeFound(b"", 0, before)
    assert me.changed(root) == 0


def test_watches_asked_for_after_a_broken_connection_tell(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    me.do(Create(root, b""))
    me.do(Read(root, watch=True))
    me.line.cut()
    me.wait(SessionUp, 2)
    assert me.do(Read(root, watch=True)) == NodeFound(b"", 0, PERSISTENT)
    other.do(Write(root, b"", 0))
    me.until(lambda: me.changed(root) >= 1, "told of the write")


def test_an_operation_nobody_answers_is_unknown_and_reading_tells(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    me.do(Create(root, b"0"))
    me.line.silence()
    token = me.ask(Write(root, b"1", 0))
    assert me.answer(token).outcome in (Unknown(), Done(1))
    me.wait(SessionSuspended)
    assert me.do(Write(root, b"2", 0)) == Unknown()
    me.line.restore()
    me.wait(SessionUp, 2)
    found = me.do(Read(root))
    assert found in (NodeFound(b"0", 0, PERSISTENT), NodeFound(b"1", 1, PERSISTENT))
    assert other.do(Read(root)) == found


def test_of_two_who_write_the_same_version_one_wins(begin: Begin, root: str) -> None:
    me, other = begin(), begin()
    me.do(Create(root, b"0"))
    tokens = [(session, session.ask(Write(root, b"mine", 0))) for session in (me, other)]
    outcomes = [session.answer(token).outcome for session, token in tokens]
    assert sorted(outcomes, key=repr) == [Conflict(), Done(1)]


def test_a_counter_kept_by_compare_and_set_loses_nothing(begin: Begin, root: str) -> None:
    crowd = [begin() for _ in range(3)]
    crowd[0].do(Create(root, b"0"))
    wins = 0
    for _ in range(8):
        reads = [(each, each.do(Read(root))) for each in crowd]
        asked = []
        for each, found in reads:
            assert isinstance(found, NodeFound)
            asked.append((each, each.ask(Write(root, str(int(found.data) + 1).encode(), found.version))))
        outcomes = [each.answer(token).outcome for each, token in asked]
        assert outcomes.count(Conflict()) == len(crowd) - 1
        wins += sum(isinstance(outcome, Done) for outcome in outcomes)
    assert crowd[0].do(Read(root)) == NodeFound(str(wins).encode(), wins, PERSISTENT)


def test_operations_of_one_session_are_carried_out_in_order(begin: Begin, root: str) -> None:
    me = begin()
    path = f"{root}/made/of/several"
    tokens = [me.ask(Create(path, b"0")), *(me.ask(Write(path, str(n).encode(), n)) for n in range(30))]
    assert [me.answer(token).outcome for token in tokens] == [Done(n) for n in range(31)]
    assert [event.token for event in me.told if isinstance(event, RegistryResponse)] == tokens
    tokens = [me.ask(operation) for operation in (Read(f"{root}/missing", watch=True), Read(path), Read("no path"))]
    assert isinstance(me.answer(tokens[-1]).outcome, RegistryRefused)
    assert [event.token for event in me.told if isinstance(event, RegistryResponse)][-3:] == tokens


def test_the_session_is_confirmed_again_and_again_until_nobody_answers(begin: Begin, place: Place, root: str) -> None:
    me = begin(LONG_MS // 2)
    me.wait(Confirmed, 3)
    before = place.now_ms()
    answer = me.answer(me.ask(Create(root, b"")))
    assert before <= answer.sent_ms <= place.now_ms()
    me.until(lambda: any(isinstance(e, Confirmed) and e.sent_ms >= before for e in me.told), "confirmed since")
    assert all(event.sent_ms <= place.now_ms() for event in me.told if isinstance(event, Confirmed))
    me.line.silence()
    me.wait(SessionSuspended)
    silent_ms, count = place.now_ms(), me.count(Confirmed)
    me.line.restore()
    me.wait(SessionUp, 2)
    me.wait(Confirmed, count + 1)
    late = [event for event in me.told if isinstance(event, Confirmed)][count:]
    assert all(event.sent_ms >= silent_ms for event in late)


def test_the_timeout_agreed_on_is_told(begin: Begin, place: Place) -> None:
    granted = [event.timeout_ms for event in begin(SHORT_MS).told if isinstance(event, SessionUp)]
    assert granted == [place.granted_ms(SHORT_MS)]


def test_everything_is_there_after_the_registry_was_killed(begin: Begin, place: Place, root: str) -> None:
    me, other = begin(START_MS), begin(START_MS)
    me.do(Create(f"{root}/kept", b"0"))
    me.do(Write(f"{root}/kept", b"1", 0))
    other.do(Create(f"{root}/live", b"", ephemeral=True))
    me.do(Create(f"{root}/gone", b""))
    me.do(Delete(f"{root}/gone", 0))
    place.restart()
    for session in (me, other):
        session.wait(SessionSuspended)
        session.wait(SessionUp, 2)
        assert session.count(SessionLost) == 0
    assert me.do(Read(f"{root}/kept")) == NodeFound(b"1", 1, PERSISTENT)
    assert me.do(Read(f"{root}/gone")) == NodeMissing()
    assert me.do(Read(f"{root}/live")) == NodeFound(b"", 0, other.id)
    assert me.do(Write(f"{root}/kept", b"2", 1)) == Done(2)
