"""The part of YAML that files of accounts may use; everything else is refused with its line, in bounded time."""

from typing import Any

import pytest

from tandemq.config.yaml_subset import FILE_BYTES_MAX, Mapping, Node, Scalar, parse_yaml
from tandemq.errors import ConfigError


def plain(node: Node) -> Any:
    """Return a node without its lines."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.entries.items()}
    if isinstance(node, Scalar):
        return None if node.is_null else node.text()
    return [plain(item) for item in node.items]


def parsed(text: str) -> Any:
    return plain(parse_yaml(text.encode()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("---\n# nothing\n", {}),
        ("\ufeffa: b\r\nc: d e  # comment\r\n", {"a": "b", "c": "d e"}),
        ("a:\n- x\n- y\nb:\n  - z\n", {"a": ["x", "y"], "b": ["z"]}),
        ("a:\n  - k: v\n    l: w\n  -\n    k: x\n", {"a": [{"k": "v", "l": "w"}, {"k": "x"}]}),
        ("a:\n- k:\n  - 1\n  l: 2\n- m: 3", {"a": [{"k": ["1"], "l": "2"}, {"m": "3"}]}),
        ("a:\n- - x\n  - y\n- - z\n", {"a": [["x", "y"], ["z"]]}),
        ("a: null\nb: ~\nc:\nd: ''\n", {"a": None, "b": None, "c": None, "d": ""}),
        ("a: 'it''s # no: comment'\nb: \"q\\\"\\\\\"  # c\n", {"a": "it's # no: comment", "b": 'q"\\'}),
        (
            "a: [x, 'y, z', \"w\" ] # c\nb: []\nc: {counter: 1, timestamp: 22}\nd: {}\n",
            {"a": ["x", "y, z", "w"], "b": [], "c": {"counter": "1", "timestamp": "22"}, "d": {}},
        ),
        (
            "a: t=PUB|SUB\nb: 10.0.0.{4,5}\nc: 10.0.0.*\nd: a#b\n",
            {"a": "t=PUB|SUB", "b": "10.0.0.{4,5}", "c": "10.0.0.*", "d": "a#b"},
        ),
        ("a: 1234567abc\nb: 10.0.0.1\nc: 2024x\n", {"a": "1234567abc", "b": "10.0.0.1", "c": "2024x"}),
    ],
)
def test_a_file_of_the_subset_is_read(text: str, value: Any) -> None:
    assert parsed(text) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &x b\n", 1),
        ("a: b\nc: *x\n", 2),
        ("a: !!python/object b\n", 1),
        ("a: |\n  b\n", 2),
        ("a: >-\n", 1),
        ("a: b\n  c\n", 2),
        ("a: b\na: c\n", 2),
        ("a:\n- x\nb\n", 3),
        ("a:\n    - x\n  - y\n", 3),
        ("- a\n", 1),
        ("a: b\n---\nc: d\n", 2),
        ("%YAML 1.1\n", 1),
        ("a:\n\tb: c\n", 2),
        ("a: 'x\n", 1),
        ("a: 'x' y\n", 1),
        ('a: "\\u0041"\n', 1),
        ("a: [x\n  y]\n", 2),
        ("a: [x\n", 1),
        ("a: [[x]]\n", 1),
        ("a: {x: 1, x: 2}\n", 1),
        ("a: b: c\n", 1),
        ("a: b:\n", 1),
        ("? a\n", 1),
        ("a: \x07\n", 1),
        ("a:\n" + "".join(f"{' ' * n}- k:\n" for n in range(2, 20, 2)), 5),
        ("a:\n" + "- " * 50 + "x\n", 2),
    ],
)
def test_everything_else_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^line {line}: "):
        parse_yaml(text.encode())


@pytest.mark.parametrize(
    "value", ["012345678", "1_000_000", "12345678.5", "1e10", "0x1234567", "1:2:3:4", "yes", "2001-01-01"]
)
def test_a_plain_value_that_java_reads_as_another_one_needs_quotes(value: str) -> None:
    with pytest.raises(ConfigError, match="quotes"):
        parsed(f"a: {value}\n")
    assert parsed(f"a: '{value}'\n") == {"a": value}


def test_errors_do_not_show_values() -> None:
    for text in (
        "secretKey: &hunter22\n",
        "secretKey: 'hunter22\n",
        "secretKey: hunter22: x\n",
        "hunter22\n",
        "a: [hunter22\n",
    ):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text.encode())
        assert "hunter22" not in str(caught.value)


def test_a_large_file_is_refused_and_the_largest_is_read_in_one_pass() -> None:
    with pytest.raises(ConfigError, match="maximum"):
        parse_yaml(b"#" * (FILE_BYTES_MAX + 1))
    for line in ("- a=PUB\n", "- 'it''s'\n", "- [a, b]\n", "- {a: b}\n"):
        count = (FILE_BYTES_MAX - 3) // len(line)
        assert len(parsed("a:\n" + line * count)["a"]) == count
    for hostile in ("[" * 900_000, "'" * 900_001, '"' + "\\\\" * 400_000, "- " * 400_000):
        with pytest.raises(ConfigError):
            parse_yaml(f"a: {hostile}".encode())


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(ConfigError, match=r"^line 2: it is not UTF-8"):
        parse_yaml(b"a: b\nc: \xff\n")
