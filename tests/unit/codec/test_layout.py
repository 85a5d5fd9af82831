"""Cached layouts of properties: the same result the first time and from the cache."""

from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.record.layout import LAYOUTS_MAX, Layouts
from tandemq.codec.record.record import crc_property, property_value, record_keys, tags_code
from tandemq.model.message import decode_properties

UNUSUAL = {"DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", *sorted(UNUSUAL), "user", "XUNIQ_KEY", "KEYSX"])
PAIRS = st.lists(
    st.tuples(NAMES, st.sampled_from(["", "a", "false", "FALSE", "true", "k1 k2", "é"])),
    max_size=6,
    unique_by=lambda pair: pair[0],
)


@given(PAIRS, st.booleans())
def test_layout_matches_the_properties(pairs: list[tuple[str, str]], closed: bool) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if closed and pairs else "")
    expected = decode_properties(raw)
    layouts = Layouts()
    for _ in range(2):
        unique, layout = layouts.of(raw.encode())
        assert (unique or b"").decode() == expected.get("UNIQ_KEY", "")
        assert (layout.keys or b"").decode() == expected.get("KEYS", "")
        assert layout.tags_code == tags_code(raw.encode())
        assert layout.waits == (expected.get("WAIT", "").lower() != "false")
        assert layout.is_usual == (not UNUSUAL & set(expected))
        kept = decode_properties((layout.before + layout.after).decode())
        assert kept == {name: value for name, value in expected.items() if name not in ("UNIQ_KEY", "WAIT")}


@given(st.lists(st.tuples(NAMES, st.sampled_from(["a", "b", "false", "k1 k2"])), max_size=8))
def test_last_value_of_a_repeated_name_counts(pairs: list[tuple[str, str]]) -> None:
    raw = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    expected = dict(pairs)
    layouts = Layouts()
    for _ in range(2):
        unique, layout = layouts.of(raw)
        assert (unique or b"").decode() == expected.get("UNIQ_KEY", "")
        assert (layout.keys or b"").decode() == expected.get("KEYS", "")
        assert layout.tags_code == tags_code(raw)
    assert record_keys(raw) == [
        key.encode() for key in (expected.get("UNIQ_KEY", ""), *expected.get("KEYS", "").split()) if key
    ]


def test_stored_form_is_read_without_its_crc() -> None:
    raw = b"KEYS\x01k\x02UNIQ_KEY\x01u\x02"
    unique, layout = Layouts().of_stored(raw + crc_property(123))
    assert unique == property_value(raw, b"UNIQ_KEY")
    assert layout.keys == b"k"
    assert b"__CRC32#" not in layout.before + layout.after


def test_number_of_cached_layouts_is_limited() -> None:
    layouts = Layouts()
    for number in range(LAYOUTS_MAX * 2 + 5):
        layouts.of(b"KEYS\x01%d\x02" % number)
        assert len(layouts._known) <= LAYOUTS_MAX
    layouts.of(b"KEYS\x01" + b"k" * 5000)
    assert all(len(before) + len(after) < 5000 for before, after in layouts._known)
