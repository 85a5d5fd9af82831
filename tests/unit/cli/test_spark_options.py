"""The options that the jobs of `tandemq spark` have in common reach their session; no Spark is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemq.cli.spark import parameters
from tandemq.cli.spark.commands import spark
from tandemq.errors import ConfigError

JOBS = {
    "archive": ("STORE", "LAKE"),
    "audit": ("STORE", "LAKE"),
    "collect": ("LAKE",),
    "expire": ("LAKE", "--older-than", "1d"),
    "rebuild": ("STORE", "NEW"),
    "remove": ("--lake", "LAKE", "--key", "k"),
    "replay": ("LAKE", "--to-topic", "Again"),
    "report": ("STORE", "PAGE"),
    "scrub": ("STORE",),
    "state": ("LAKE", "Orders"),
    "stats": ("LAKE",),
}


@pytest.mark.parametrize("job", JOBS)
def test_options_of_a_job_reach_its_session(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, tuple[str, ...], bool]] = []

    def refuse(master: str | None, conf: tuple[str, ...], *, silent: bool, words: Mapping[str, str] | None) -> Any:
        asked.append((master, conf, silent))
        raise ConfigError("no session here")

    monkeypatch.setattr(parameters, "spark_session", refuse)
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "LAKE"):
        Path(name).mkdir()
    common = ("--master", "local[2]", "--conf", "a=b", "--conf", "c=d", "--json")
    result = CliRunner().invoke(spark, [job, *JOBS[job], *common])
    assert isinstance(result.exception, ConfigError), result.output
    assert asked == [("local[2]", ("a=b", "c=d"), True)]
