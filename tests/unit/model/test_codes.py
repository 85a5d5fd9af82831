"""Request codes: each is answered by the servers named below it (docs/reference/codes.md), and refused by the others.

Requests are sent to a broker, a name server and a client, without fields: most answer with the missing field.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tandemq.boundary import Now
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.codec.remoting.frame import encode_command
from tandemq.config.settings import NameServerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import Harness
from tests.unit.nameserver.driver import Driver
from tools.reference import codes_page

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"
NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
Asked = Callable[[int], Command | None]
"""From a code to its response; None: no response, or a later one."""


ANSWERED_BY = {
    int(code): set(who.split(", "))
    for code, who in re.findall(r"^\| (\d+) \| \w+ \| (\w[^|]*) \| .*\|$", codes_page(), re.MULTILINE)
}


def missing() -> Iterator[int]:
    """Yield the codes of requests that this release does not support."""
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    for codes in re.findall(r"^\| [A-Z][^|]* \|[^|]*\| ([\d, –]+) \|$", page, re.MULTILINE):
        for piece in codes.split(", "):
            first, _, last = piece.partition("–")
            yield from range(int(first), int(last or first) + 1)


def broker(path: Path) -> Asked:
    node = Harness(path)
    return lambda code: node.answer_to(node.send_request(code))


def name_server(path: Path, *, has_registry: bool = False) -> Asked:
    server = Driver(path, NameServerConfig(registry_enable=has_registry))
    server.open(1)

    def ask(code: int) -> Command | None:
        found, _ = server.raw(1, encode_command(Command(code, code)))
        return found[0] if found else None

    return ask


def registry(path: Path) -> Asked:
    return name_server(path, has_registry=True)


def client(_path: Path) -> Asked:
    asked = ClientNode(
        ClientConfig(name_servers=("127.0.0.1:9876",), client_id="c"), Random(1), Now(0, 0)
    ).remoting.on_request
    assert asked is not None
    return lambda code: asked("127.0.0.1:10911", Command(code), Now(0, 0))


WHO = {"broker": broker, "name server": name_server, "registry": registry, "client": client}


@pytest.mark.parametrize("who", WHO)
def test_code_is_answered_by_the_documented_servers_and_refused_by_others(tmp_path: Path, who: str) -> None:
    ask = WHO[who](tmp_path)
    names = {who, "name server"} if who == "registry" else {who}
    for code in RequestCode:
        answer = ask(code)
        is_refused = answer is not None and answer.code == NOT_SUPPORTED
        assert is_refused == (not names & ANSWERED_BY[code]), f"{who} answers {code.name} with {answer}"
        if answer is not None and is_refused:
            assert str(int(code)) in (answer.remark or "")


def test_page_names_only_the_servers_of_this_test() -> None:
    named = set.union(*ANSWERED_BY.values())
    assert named == {*WHO, "none"}
    assert all(who == {"none"} for who in ANSWERED_BY.values() if "none" in who)


@pytest.mark.parametrize("who", WHO)
def test_unsupported_request_is_refused_with_a_remark(tmp_path: Path, who: str) -> None:
    ask, codes = WHO[who](tmp_path), list(missing())
    assert {906, 908, 200056} <= set(codes)
    for code in codes:
        answer = ask(code)
        assert answer is not None, f"{who} does not answer {code}"
        assert answer.code == NOT_SUPPORTED, f"{who} answers {code} with {answer}"
        assert str(code) in (answer.remark or "")
    known = {int(code) for code in RequestCode}
    assert all(ANSWERED_BY[code] == {"none"} for code in codes if code in known)
