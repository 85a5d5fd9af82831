"""What a program shows on standard error: one line for wrong input, also of streams, and nothing when it succeeds."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tandemq.errors import ConfigError
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.causes import parse_error
from tandemq.spark.runtime.worker_errors import HIDE, shows_one_line
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

PROGRAM = """
import sys
from tandemq.spark import open_session, register
from tests.spark.short import SHORT

SETTINGS = {name: value for name, value in SHORT.items() if "daemon" not in name} | {"spark.driver.memory": "512m"}

names, checkpoint = sys.argv[1:3]
spark, _ = open_session("lines", master="local[2]", settings=SETTINGS)
register(spark)

def stream(topic):
    rows = spark.readStream.format("rocketmq").options(nameServer=names, subscribe=topic, startingOffsets="earliest")
    writer = rows.load().writeStream.format("noop").option("checkpointLocation", f"{checkpoint}/{topic}")
    return writer.trigger(availableNow=True).start()

stream("Orders").awaitTermination()
assert spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders").load().count() == 3
print("good", file=sys.stderr, flush=True)
for read in (lambda: stream("Order").awaitTermination(), lambda: stream("Ord\\u00e9r").awaitTermination()):
    try:
        read()
    except Exception as error:
        print(str(error).splitlines()[0])
print("bad", file=sys.stderr, flush=True)
spark.stop()
"""
NOISE = re.compile(r"WARNING: (Using incubator modules|.*[Nn]ative|A restricted method|.*Unsafe|Use --enable|Please)")


@spec("P41")
def test_program_shows_wrong_input_in_one_line_and_nothing_else(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders")
    send(names, numbered("Orders", 0, 3))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, names, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if not NOISE.match(line)]
    good, bad = shown.index("good"), shown.index("bad")
    assert shown[:good] == []
    assert shown[bad + 1 :] == [], "no traceback of processes that end"
    said = [line for line in shown[good + 1 : bad] if line.strip() and not line.startswith(" SQLSTATE")]
    assert len(said) == 2
    assert "tandemq.errors.ConfigError: no name server knows the topic 'Order' (there are Orders" in said[0]
    first, second = done.stdout.splitlines()
    assert "no name server knows the topic 'Order'" in first
    assert "Ordér" in second
    assert isinstance(parse_error(first), ConfigError)


@shows_one_line
class Reader:
    def partitions(self) -> list[int]:
        raise ConfigError("bad")

    def read(self, number: int) -> Iterator[int]:
        yield number
        raise ConfigError("bad")

    def other(self) -> None:
        raise ValueError("a defect")


@pytest.mark.parametrize(
    ("program", "hides"),
    [(None, False), ("tests.spark", False), ("pyspark.daemon", True), ("tandemq.spark.runtime.daemon", True)],
)
def test_traceback_of_our_errors_is_hidden_in_processes_of_spark(
    program: str | None, monkeypatch: pytest.MonkeyPatch, *, hides: bool
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if program is None else SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    calls: tuple[Callable[[], object], ...] = (Reader().partitions, lambda: list(Reader().read(1)))
    for call in calls:
        monkeypatch.delenv(HIDE, raising=False)
        with pytest.raises(ConfigError):
            call()
        assert (os.environ.get(HIDE) == "1") is hides
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(ValueError, match="a defect"):
        Reader().other()
    assert HIDE not in os.environ


def test_process_of_sparks_daemon_says_nothing_when_the_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(_sock: object, authenticated: bool) -> int:
        if authenticated:
            raise BrokenPipeError
        return 0

    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    main.worker = worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigError):
        Reader().partitions()
    for _ in range(2):
        assert main.worker(None, False) == 0
        assert main.worker(None, True) == 1
        with pytest.raises(ConfigError):
            Reader().partitions()
    assert main.worker.__wrapped__ is worker
