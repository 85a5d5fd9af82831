"""Errors of `tandemq kafka` before it serves."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli import main
from tandemq.cli.support.exit_codes import EXIT_USAGE
from tandemq.errors import ConfigError, LocalError
from tandemq.kafka.server import KafkaAddress


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    result = CliRunner().invoke(main, ["kafka"])
    assert result.exit_code == EXIT_USAGE
    assert "pip install 'tandemq[kafka]'" in result.output


def test_options_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "any.pem"
    file.write_text("")
    for options, words in (
        (["--certificate", str(file)], "--certificate and --key need each other"),
        (["--client-ca", str(file)], "--client-ca needs --certificate"),
        (["--host", "0.0.0.0"], "give --advertised-host"),
        (["--host", "0.0.0.0", "--advertised-host", "a", "--sasl"], "it needs --certificate and --key"),
    ):
        result = CliRunner().invoke(main, ["kafka", "--partitions", str(tmp_path / "numbers.json"), *options])
        assert result.exit_code == EXIT_USAGE
        assert words in result.output
    with pytest.raises(ConfigError, match="cannot"):
        KafkaAddress(certificate=str(file), key=str(file)).context()


def test_a_port_in_use_is_said() -> None:
    listener = KafkaAddress(port=0).listen()[0]
    with listener, pytest.raises(LocalError, match="cannot listen"):
        listener.listen()
        KafkaAddress(port=listener.getsockname()[1]).listen()
