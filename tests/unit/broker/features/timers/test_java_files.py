"""The files for Java brokers: wheel, timer log and check file, byte by byte."""

from pathlib import Path
from random import Random
from struct import Struct

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Job, JobDone, Now
from tandemq.broker.features.timers.java_files import JavaFiles
from tandemq.broker.features.timers.timer_check import FILE_BYTES, PATH, TimerCheck, check_of_java, decode_check
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode
from tandemq.model.java_hash import java_hash
from tandemq.model.topic import TIMER_TOPIC
from tests.unit.broker.features.timers.test_timed_messages import bodies, delivered, ready, timed
from tests.unit.broker.harness import Harness

SLOT, UNIT = Struct(">qqqii"), Struct(">iqiqiqiiq")
WHEEL_BYTES = 604_800 * 2 * 32
LOG_FILE_BYTES = 104_857_600


def stop(broker: Harness) -> None:
    broker.pass_time(110)
    broker.node.stop(broker.now)
    broker.node.close()


def slot_at(path: Path, out_ms: int) -> tuple[int, ...]:
    with (path / "timerwheel").open("rb") as file:
        file.seek(out_ms // 1_000 % (WHEEL_BYTES // 32) * 32)
        return SLOT.unpack(file.read(32))


def units(path: Path, count: int) -> list[tuple[int, ...]]:
    with (path / "timerlog" / ("0" * 20)).open("rb") as file:
        return list(UNIT.iter_unpack(file.read(52 * count)))


def test_wheel_and_log_have_what_waits(tmp_path: Path) -> None:
    broker = ready(tmp_path, recall_enable=True)
    start_ms = broker.now.wall_ms
    timed(broker, b"over", UNIQ_KEY="K0", TIMER_DELAY_SEC="1")
    handle = timed(broker, b"one", UNIQ_KEY="K1", TIMER_DELAY_MS="60500").fields["recallHandle"]
    timed(broker, b"other time", UNIQ_KEY="K2", TIMER_DELAY_MS="90500")
    timed(broker, b"two", topic="TopicB", UNIQ_KEY="K3", TIMER_DELAY_MS="60500")
    fields = {"producerGroup": "p", "topic": "TopicA", "recallHandle": handle}
    broker.ask(RequestCode.RECALL_MESSAGE, fields)
    broker.pass_time(3_000)
    stop(broker)

    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES
    (log_file,) = (tmp_path / "timerlog").iterdir()
    assert (log_file.name, log_file.stat().st_size) == ("0" * 20, LOG_FILE_BYTES)
    stored = delivered(broker, TIMER_TOPIC, 0)
    now_ms = start_ms + 3_000
    assert [unit[:5] for unit in units(tmp_path, 4)] == [
        (52, -1, 1, now_ms, 57_000),
        (52, -1, 1, now_ms, 87_000),
        (52, 0, 1, now_ms, 57_000),
        (52, 104, 5, now_ms, 57_000),
    ]
    assert [unit[5:7] for unit in units(tmp_path, 4)] == [(one.log_offset, one.size) for one in stored[1:]]
    hashes = [java_hash(topic) for topic in ("TopicA", "TopicA", "TopicB", "TopicA")]
    assert [unit[7:] for unit in units(tmp_path, 4)] == [(one, 0) for one in hashes]
    assert slot_at(tmp_path, start_ms + 60_000) == ((start_ms + 60_000) // 1_000, 0, 156, 1, 0)
    assert slot_at(tmp_path, start_ms + 90_000) == ((start_ms + 90_000) // 1_000, 52, 52, 1, 0)
    assert slot_at(tmp_path, start_ms) == (0, 0, 0, 0, 0)

    raw = (tmp_path / PATH).read_bytes()
    check = decode_check(raw)
    assert len(raw) == FILE_BYTES
    assert check[:4] == (now_ms, 208, 5, 5)
    assert check_of_java(broker.disk) is None


def test_last_unit_is_of_the_last_record_so_that_nothing_behind_it_is_delivered_again(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    timed(broker, b"waits", TIMER_DELAY_MS="60500")
    timed(broker, b"over", TIMER_DELAY_SEC="1")
    timed(broker, b"over too", TIMER_DELAY_SEC="1")
    broker.pass_time(3_000)
    stop(broker)
    stored = delivered(broker, TIMER_TOPIC, 0)
    now_ms = start_ms + 3_000
    assert [unit[2:7] for unit in units(tmp_path, 2)] == [
        (1, now_ms, 57_000, stored[0].log_offset, stored[0].size),
        (1, now_ms - 1_000, 0, stored[2].log_offset, stored[2].size),
    ]
    check = decode_check((tmp_path / PATH).read_bytes())
    assert (check.read_ms, check.log_position, check.queue_offset) == (now_ms, 104, 3)


def test_far_message_is_marked_to_be_stored_again(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    timed(broker, TIMER_DELAY_MS="200000500")
    timed(broker, TIMER_DELAY_MS="259199500")
    stop(broker)
    assert [unit[2:5] for unit in units(tmp_path, 2)] == [(3, start_ms, 86_400_000), (3, start_ms, 172_800_000)]


def test_files_go_when_a_broker_begins_to_deliver(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    timed(broker, b"one", TIMER_DELAY_SEC="5")
    stop(broker)
    assert (tmp_path / "timerwheel").exists()
    broker = broker.restart(clean=False)
    broker.pass_time(200)
    assert not (tmp_path / "timerwheel").exists()
    assert not (tmp_path / "timerlog").exists()
    broker.pass_time(8_000)
    assert bodies(broker) == [b"one"]


def test_check_file_names_the_oldest_waiting_message_while_a_broker_runs(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    timed(broker, TIMER_DELAY_SEC="2")
    broker.pass_time(5_000)
    check = decode_check((tmp_path / PATH).read_bytes())
    assert (check.read_ms % 1_000, check.queue_offset, check.master_queue_offset) == (0, 1, 1)
    served = decode_check(broker.ask(RequestCode.GET_TIMER_CHECK_POINT).body)  # its Java slaves read up to there
    assert (served.read_ms, served.queue_offset, served.master_queue_offset) == (broker.now.wall_ms, 1, 1)


def test_check_file_is_written_when_it_has_changed_or_its_job_has_failed() -> None:
    disk, turn = SimDisk(Random(1)), CurrentTurn()
    files, check = JavaFiles(disk, turn), TimerCheck(1_000, 0, 5, 5)

    def job() -> Job | None:
        files.save_check(check)
        return turn.out.jobs.pop() if turn.out.jobs else None

    first = job()
    assert first is not None
    assert job() is None  # the first one has not ended
    first.done(JobDone(first, error=DiskFull("full")), turn.out, Now(0, 0))

    again = job()
    assert again is not None
    again.run()
    again.done(JobDone(again), turn.out, Now(0, 0))
    assert decode_check(disk.read(PATH) or b"") == check
    assert job() is None
