"""Names and choice of cells, and the options that the generator gets for them."""

import pytest

from bench.cells import CELLS, DEFAULT, OURS, SERVERS, SESSIONS, chosen
from bench.estimate import by_session, minutes_text, seconds
from bench.matrix import FORMS, LAYOUTS, PULL_LOADS, SEND_LOADS, SHAPES
from bench.sessions import _SESSIONS
from bench.setting import QUICK, Pace
from tandemq.load.__main__ import _parser


def names(*only: str) -> list[str]:
    return [cell.name for cell in chosen(list(only))]


def test_every_cell_of_the_product_can_be_chosen_by_its_coordinates() -> None:
    for form in FORMS:
        for layout in LAYOUTS:
            for shape in SHAPES:
                name = f"send/{form}/varied/{layout}/{shape}"
                assert names(name) == [name]


def test_names_are_unique_and_every_session_has_cells() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert {cell.session for cell in DEFAULT} == set(SESSIONS) == set(_SESSIONS)


def test_without_a_choice_the_default_is_measured() -> None:
    assert chosen([]) == list(DEFAULT)


def test_default_takes_at_most_50_minutes_on_all_servers() -> None:
    assert 25 * 60 < seconds(DEFAULT, SERVERS, Pace()) <= 50 * 60
    assert seconds(DEFAULT, SERVERS, QUICK) < 20 * 60


@pytest.mark.parametrize(
    ("only", "sessions"),
    [
        (["send/json/varied/4q/1x1", "pair/varied/1x1"], {"send", "pair"}),
        (["ha"], {"read"}),
        (["store/verify"], {"store"}),
        (["e2e/1000", "rest/cpu", "client"], {"live", "rest", "client"}),
    ],
)
def test_estimate_has_the_sessions_that_have_cells_and_grows_with_servers(only: list[str], sessions: set[str]) -> None:
    ours, all_servers = (by_session(chosen(only), servers, Pace()) for servers in ((OURS,), SERVERS))
    assert set(ours) == set(all_servers) == sessions
    for session, value in ours.items():
        has_peers = any(not cell.ours_only for cell in chosen(only) if cell.session == session)
        assert all_servers[session] > value if has_peers else all_servers[session] == value


def test_estimate_for_people_is_in_whole_minutes() -> None:
    assert [minutes_text(total) for total in (1, 60, 61)] == ["about 1 minute", "about 1 minute", "about 2 minutes"]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("flush", ["flush/128/1x1", "flush/128/16x32", "flush/varied/1x1", "flush/varied/16x32"]),
        ("pair/varied", ["pair/varied/1x1", "pair/varied/64x1", "pair/varied/16x32"]),
        ("send/v1/varied/*/1x32", [f"send/v1/varied/{layout}/1x32" for layout in LAYOUTS]),
        ("failover", ["failover"]),
        ("e2e/1000", ["e2e/1000/p50", "e2e/1000/p99"]),
    ],
)
def test_entry_is_a_session_a_beginning_or_a_pattern(only: str, found: list[str]) -> None:
    assert names(only) == found


def test_several_entries_are_joined_in_the_order_of_the_cells() -> None:
    assert names("rest/rss", "send/json/varied/4q/1x1", "rest") == [
        "send/json/varied/4q/1x1",
        "rest/start",
        "rest/cpu",
        "rest/rss",
        "rest/rss-10k",
    ]


def test_unknown_cell_is_an_error_that_names_the_sessions() -> None:
    with pytest.raises(ValueError, match=r"'send/xml'; sessions: send, deliver, read"):
        chosen(["send/xml"])


def test_large_bodies_are_measured_with_few_requests_in_flight() -> None:
    assert names("send/json/1m/4q") == ["send/json/1m/4q/1x1", "send/json/1m/4q/4x8"]


def test_generator_knows_every_option_of_a_load() -> None:
    for kind, loads in (("produce", SEND_LOADS), ("consume", PULL_LOADS)):
        for load in loads.values():
            flags = [
                part for name, value in load.options.items() for part in (f"--{name.replace('_', '-')}", str(value))
            ]
            _parser().parse_args([kind, "127.0.0.1:1", *flags])
