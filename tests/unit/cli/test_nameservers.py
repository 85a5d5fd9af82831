"""All commands report a --namesrv that is not a name server or does not answer."""

from contextlib import closing
from functools import partial

import pytest

from tandemq.client.aio import pull_consumer
from tandemq.client.core.settings import ConsumerOptions
from tandemq.run.local import LocalCluster
from tandemq.run.ports import ReservedPorts
from tests.unit.cli.conftest import Run

COMMANDS = [
    ("topic", "list"),
    ("topic", "show", "T"),
    ("group", "create", "g"),
    ("group", "show", "g"),
    ("offset", "show", "g"),
    ("offset", "reset", "g", "T", "--to", "latest"),
    ("cluster", "list"),
    ("message", "send", "T", "body"),
    ("message", "tail", "T", "--seconds", "1"),
    ("message", "query", "T", "--key", "k"),
    ("ha", "status"),
    ("ha", "verify"),
    ("ha", "scrub"),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_broker_given_as_name_server_is_reported(run: Run, cluster: LocalCluster, words: tuple[str, ...]) -> None:
    printed = run(*words, "-n", cluster.address, code=1).stderr
    assert f"{cluster.address} is not a name server; is it a broker? (give its address with --namesrv" in printed


@pytest.mark.parametrize("words", COMMANDS)
def test_unreachable_name_server_is_named(run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "ConsumerOptions", partial(ConsumerOptions, start_timeout_ms=1_000))
    with closing(ReservedPorts()) as ports:
        port = ports.reserve()
        printed = run(*words, "-n", f"127.0.0.1:{port}", code=1).stderr
    assert f"no name server answers: no process answers at 127.0.0.1:{port}" in printed
    assert "--" in printed.partition("Connection refused")[2], "a hint follows"


def test_other_errors_are_not_attributed_to_name_servers(run: Run, cluster: LocalCluster) -> None:
    with closing(ReservedPorts()) as ports:
        one_answers = f"127.0.0.1:{ports.reserve()};{cluster.name_servers}"
        printed = run("topic", "show", "NoSuchTopic", "-n", one_answers, code=1).stderr
    assert "NoSuchTopic" in printed
    assert "name server:" not in printed
