"""A --namesrv that is none, or does not answer, is said to be so, whatever the command asked for."""

import pytest

from tandemq.run.local import LocalCluster
from tests.blackbox.ports import Reserved
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
def test_broker_given_as_name_server_is_said_to_be_none(
    run: Run, cluster: LocalCluster, words: tuple[str, ...]
) -> None:
    told = run(*words, "-n", cluster.address, code=1).stderr
    assert f"{cluster.address} is no name server; is it a broker? (--namesrv" in told


@pytest.mark.parametrize("words", COMMANDS)
def test_name_server_that_does_not_answer_is_named(run: Run, words: tuple[str, ...]) -> None:
    nobody = Reserved()
    told = run(*words, "-n", f"127.0.0.1:{nobody.port}", code=1).stderr
    nobody.close()
    assert f"no name server: nobody answers at 127.0.0.1:{nobody.port}" in told
    assert "--" in told.partition("Connection refused")[2], "a hint follows"


def test_what_has_nothing_to_do_with_name_servers_is_told_as_it_is(run: Run, cluster: LocalCluster) -> None:
    nobody = Reserved()
    one_answers = f"127.0.0.1:{nobody.port};{cluster.name_servers}"
    told = run("topic", "show", "NoSuchTopic", "-n", one_answers, code=1).stderr
    nobody.close()
    assert "NoSuchTopic" in told
    assert "name server:" not in told
