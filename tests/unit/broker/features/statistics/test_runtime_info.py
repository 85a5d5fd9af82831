"""Runtime statistics in the exact form that tools parse, and the state of replication."""

import re
from pathlib import Path
from typing import Any

import pytest

from tandemq import __version__
from tandemq.boundary import DiskUsage, LinkKind, Now
from tandemq.broker.features.statistics.runtime_info import bytes_text, capacity_text, distribution, runtime_text
from tandemq.broker.kernel.context import Machine
from tandemq.codec.ha import REPORT
from tandemq.codec.remoting.fastjson import loads
from tandemq.metrics import Histogram
from tandemq.model.codes import RequestCode as Code
from tests.spec import spec
from tests.unit.broker.harness import START_WALL_MS, Harness, run_job

THREE = re.compile(r"\d+\.\d+ \d+\.\d+ \d+\.\d+")
NUMBERS = """
    sendThreadPoolQueueSize pullThreadPoolQueueSize queryThreadPoolQueueSize sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity queryThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
    pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize
    EndTransactionThreadPoolQueueCapacity pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio
    consumeQueueDiskRatio msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow bootTimestamp putMessageEntireTimeMax
    putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal putMessageAverageSize dispatchMaxBuffer
    getMessageEntireTimeMax putLatency99 putLatency999 brokerVersion dispatchBehindBytes
    startAcceptSendRequestTimeStamp remainTransientStoreBufferNumbs commitLogMinOffset commitLogMaxOffset
    timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
"""


def figures(broker: Harness) -> dict[str, str]:
    table: dict[str, str] = broker.json(Code.GET_BROKER_RUNTIME_INFO)["table"]
    return table


def test_every_key_that_tools_require_is_present_in_their_format(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", DELAY="3")
    table = figures(broker)
    assert all(isinstance(value, str) for value in table.values())
    for name in NUMBERS.split():
        assert re.fullmatch(r"-?\d+(\.\d+)?", table[name]), name
    for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps", "getTransferredTps"):
        assert THREE.fullmatch(table[name]), name
    assert table["brokerVersionDesc"] == "V4_9_8" and table["tandemqVersion"] == __version__
    assert table["brokerVersion"] == "409"
    assert table["scheduleMessageOffset_3"] == "0,1"
    assert table["putMessageDistributeTime"] == "null"
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert re.fullmatch(r"Total : [\d.]+ \S+, Free : [\d.]+ \S+\.", table["commitLogDirCapacity"])
    assert table["earliestMessageTimeStamp"] == str(START_WALL_MS)
    assert re.fullmatch(r"\[ 0 days, 0 hours, 0 minutes, 0 seconds \]", table["runtime"])


def test_lag_of_the_loop_is_the_delay_of_periodic_work(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.pass_time(60_000)
    assert figures(broker)["loopLagMax"] == "0"
    due_ms = broker.node.kernel.schedule.next_ms()
    assert due_ms is not None
    broker.now = Now(due_ms + 250, broker.now.wall_ms)
    broker.node.kernel.schedule.at(0, lambda _: None)  # a task that is due at once is not late
    broker.turn()
    assert figures(broker)["loopLagMax"] == "250"
    broker.pass_time(60_000)
    assert figures(broker)["loopLagMax"] == "250", "the minute before"
    broker.pass_time(60_000)
    assert figures(broker)["loopLagMax"] == "0"


def test_empty_broker_has_no_earliest_message(tmp_path: Path) -> None:
    assert figures(Harness(tmp_path))["earliestMessageTimeStamp"] == "-1"


def test_rates_are_those_of_the_last_10_60_and_600_seconds(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.pass_time(100_000)
    for _ in range(30):
        broker.send("TopicA")
        broker.pass_time(1_000)
    assert figures(broker)["putTps"].split() == ["1.0000", "0.5000", f"{30 / 130:.4f}"]
    broker.pull("TopicA", most=32)
    broker.pull("TopicA", 30)
    broker.pass_time(1_000)
    table = figures(broker)
    assert table["getFoundTps"].split()[0] == table["getMissTps"].split()[0] == "0.1000"
    assert table["getTotalTps"].split()[0] == "0.2000"
    assert table["getTransferredTps"].split()[0] == table["getTransferedTps"].split()[0] == "3.0000"
    broker.pass_time(700_000)
    assert figures(broker)["putTps"] == "0.0000 0.0000 0.0000"


def test_daily_totals_begin_at_the_machines_midnight(tmp_path: Path) -> None:
    day_ms = 86_400_000
    offset_s = (day_ms - (START_WALL_MS % day_ms)) // 1000 - 2
    broker = Harness(tmp_path, machine=Machine("boot", 8 << 30, offset_s))
    broker.send("TopicA")
    broker.pull("TopicA")
    table = figures(broker)
    assert [table[f"msgPutTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")] == ["0", "0", "1"]
    broker.pass_time(3_000)
    broker.send("TopicA")
    table = figures(broker)
    assert [table[f"msgPutTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")] == ["0", "1", "2"]
    assert [table[f"msgGetTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")] == ["0", "1", "1"]


@spec("G14")
def test_send_times_include_the_wait_and_are_shown_by_the_minute(tmp_path: Path) -> None:
    broker = Harness(tmp_path, flush_type="SYNC_FLUSH")
    broker.create_topic("TopicA")
    broker.run_jobs = False
    for wait_ms in (7, 40, 1_500):
        fields = {"a": "p", "b": "TopicA", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0}
        asked = broker.send_request(Code.SEND_MESSAGE_V2, fields, b"x")
        flush = broker.jobs.pop()
        broker.pass_time(wait_ms)
        broker.turn([], [run_job(flush)])
        assert broker.answer_to(asked) is not None
        broker.jobs.clear()
    table = figures(broker)
    assert (table["putLatencyMin"], table["putLatencyMax"], table["putMessageEntireTimeMax"]) == ("7", "1500", "1500")
    assert (table["putLatency50"], table["putLatency99"]) == ("40.00", "1500.00")
    broker.run_jobs = True
    broker.pass_time(60_000)
    assert figures(broker)["putMessageDistributeTime"] == (
        "[<=0ms]:0 [0~10ms]:1 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:1 [2~3s]:0"
        " [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0"
    )
    broker.pass_time(60_000)
    assert ":1" not in figures(broker)["putMessageDistributeTime"], "the last minute only"
    assert figures(broker)["putLatencyMax"] == "1500", "since the start"


def test_send_time_within_one_turn_is_zero(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    assert broker.send("TopicA", queue_id=99).code != 0
    broker.pass_time(60_000)
    assert figures(broker)["putMessageDistributeTime"].startswith("[<=0ms]:1 [0~10ms]:0 ")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (931 << 30, "931.0 GiB"),
        (1 << 60, "1.0 EiB"),
    ],
)
def test_bytes_are_written_to_the_base_1024(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_texts_have_rocketmqs_form() -> None:
    assert runtime_text(((25 * 60 + 1) * 60 + 2) * 1000) == "[ 1 days, 1 hours, 1 minutes, 2 seconds ]"
    assert capacity_text(DiskUsage(3 << 29, 1 << 29)) == "Total : 1.5 GiB, Free : 512.0 MiB."
    times = Histogram()
    for ms in (0, 1, 9, 10, 70_000):
        times.add(ms)
    assert distribution(times).split(" ")[:3] == ["[<=0ms]:1", "[0~10ms]:2", "[10~50ms]:1"]
    assert distribution(times).endswith("[10s~]:1")


# Replication.


def ha(broker: Harness) -> dict[str, Any]:
    found: dict[str, Any] = loads(broker.ask(Code.GET_BROKER_HA_STATUS).body)
    return found


def test_master_alone_has_no_slaves(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    found = ha(broker)
    assert (found["master"], found["inSyncSlaveNums"], found["haConnectionInfo"]) == (True, 0, [])
    assert found["masterCommitLogMaxOffset"] == broker.node.store.log.written_end > 0
    assert found["haClientRuntimeInfo"]["activated"] is False


def test_master_reports_the_offset_of_each_slave(tmp_path: Path) -> None:
    broker = Harness(tmp_path, ha_classic_peers=("10.0.0.5",), ha_lag_bytes_max=100)
    broker.open(5, LinkKind.HA_MASTER, "10.0.0.5:999")
    broker.turn([(5, REPORT.pack(0))])
    broker.send("TopicA")
    end = broker.node.store.log.written_end
    broker.pass_time(1_000)
    [slave] = ha(broker)["haConnectionInfo"]
    assert slave == {
        "addr": "10.0.0.5:999",
        "diff": end,
        "inSync": False,
        "slaveAckOffset": 0,
        "transferFromWhere": end,
        "transferredByteInSecond": end,
        "brokerId": -1,
        "lastReadTimestamp": START_WALL_MS,
        "lastWriteTimestamp": START_WALL_MS,
        "authenticated": False,
        "tls": "",
    }
    broker.turn([(5, REPORT.pack(end))])
    broker.pass_time(1_000)
    found = ha(broker)
    [slave] = found["haConnectionInfo"]
    assert (slave["diff"], slave["inSync"], slave["transferredByteInSecond"]) == (0, True, 0)
    assert found["inSyncSlaveNums"] == 1


def test_slave_reports_its_connection_to_the_master(tmp_path: Path) -> None:
    slave = Harness(tmp_path, role="SLAVE", broker_id=1, ha_master_address="10.0.0.1:10912", ha_protocol="classic")
    found = ha(slave)
    assert found["master"] is False
    own = found["haClientRuntimeInfo"]
    assert (own["activated"], own["masterAddr"]) == (False, "10.0.0.1:10912")
    slave.turn()
    [link] = [connect.link for connect in slave.connects]
    slave.open(link, LinkKind.HA_SLAVE, "10.0.0.1:10912")
    slave.pass_time(100)
    own = ha(slave)["haClientRuntimeInfo"]
    assert own["activated"] is True
    assert own["lastReadTimestamp"] == slave.now.wall_ms - 100


def test_generations_of_the_log_are_reported_with_their_bounds(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    assert broker.json(Code.GET_BROKER_EPOCH_CACHE)["epochList"] == [{"epoch": 1, "startOffset": 0, "endOffset": 0}]
    broker.node.kernel.generations.set([(1, 0), (3, 77)])
    broker.send("TopicA")
    answer = broker.json(Code.GET_BROKER_EPOCH_CACHE)
    assert answer["epochList"] == [
        {"epoch": 1, "startOffset": 0, "endOffset": 77},
        {"epoch": 3, "startOffset": 77, "endOffset": answer["maxOffset"]},
    ]
    assert answer["brokerName"] == broker.node.config.broker_name
