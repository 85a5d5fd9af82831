"""Masters and slaves as processes: killed, frozen, cut off, slowed down."""

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown
from tandemq.model.codes import RequestCode, ResponseCode
from tests.blackbox.kills import kill_again_and_again
from tests.blackbox.pair import Start, start_slave, wait_for_copy, wait_for_status
from tests.blackbox.programs import WAIT_S, Caller, Program, Proxy, wait_until
from tests.spec import spec

OK = ResponseCode.SUCCESS


@spec("R04")
def test_master_alone_is_down_while_it_is_down_and_keeps_what_it_acknowledged(start: Start) -> None:
    master = start("master", flushDiskType="SYNC_FLUSH")
    with Caller(master.port) as caller:
        assert [caller.send(b"%d" % number) for number in range(50)] == [OK] * 50
        master.kill()
        with pytest.raises(OutcomeUnknown):
            caller.send(b"lost")
            caller.read_all()
    with pytest.raises(NotConnected):
        Caller(master.port).close()
    master.start()
    with Caller(master.port) as caller:
        assert caller.read_all() == [b"%d" % number for number in range(50)]
        assert caller.send(b"again") == OK


@spec("R05")
def test_one_of_two_masters_dies_and_the_other_goes_on(start: Start) -> None:
    """Producers use the other meanwhile; the backlog of the dead one comes with its return."""
    masters = [start(f"master{number}", brokerName=f"broker-{number}", flushDiskType="SYNC_FLUSH") for number in (0, 1)]
    with Caller(masters[0].port) as first, Caller(masters[1].port) as second:
        backlog = [b"%d" % number for number in range(20)]
        assert {first.send(body) for body in backlog} == {OK}
        masters[0].kill()
        assert {second.send(b"other") for _ in range(20)} == {OK}
    masters[0].start()
    with Caller(masters[0].port) as first:
        assert first.read_all() == backlog
        assert first.send(b"back") == OK


@spec("R08", "R07", "R09")
def test_acknowledged_messages_survive_the_masters_whole_disk(start: Start, tmp_path: Path) -> None:
    master = start("master", brokerRole="SYNC_MASTER")
    slave = start_slave(start, master.ha_port)
    with Caller(master.port) as caller:
        wait_for_status(caller, OK)
        acknowledged = [b"message %d" % number for number in range(300)]
        opaques = [caller.begin_send(body) for body in acknowledged]
        codes = {answer.opaque: answer.code for answer in (caller.receive() for _ in opaques)}
        assert set(codes.values()) == {OK}
    master.kill()
    (tmp_path / "master" / "store").rename(tmp_path / "burnt")
    with Caller(slave.port) as caller:
        assert set(acknowledged) <= set(caller.read_all())
        assert caller.send(b"no") == ResponseCode.SERVICE_NOT_AVAILABLE


@spec("T15", "W13")
def test_slave_killed_at_random_moments_under_load_ends_equal(start: Start) -> None:
    """Four kills here; `make soak` does a hundred."""
    kill_again_and_again(start, kills=4)


@spec("H16", "W07", "V04", "H19")
def test_frozen_slave_is_noticed_and_comes_back(start: Start) -> None:
    """Stopped, not dead: its connection stays open, only its silence tells."""
    master = start("master", brokerRole="SYNC_MASTER")
    slave = start_slave(start, master.ha_port)
    with Caller(master.port) as caller:
        wait_for_status(caller, OK)
        slave.freeze()
        wait_for_status(caller, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        wait_for_status(caller, ResponseCode.SLAVE_NOT_AVAILABLE)
        assert "no report for" in master.log_text()
        slave.thaw()
        wait_for_status(caller, OK)
    wait_for_copy(master, slave)


@spec("H16", "H17")
def test_frozen_master_is_noticed_and_connected_again(start: Start) -> None:
    master = start("master")
    slave = start_slave(start, master.ha_port)
    with Caller(master.port) as caller:
        assert caller.send(b"one") == OK
    wait_for_copy(master, slave)
    master.freeze()
    wait_until(lambda: "nothing from the master" in slave.log_text(), "the slave notices")
    master.thaw()
    with Caller(master.port) as caller:
        assert caller.send(b"two") == OK
    wait_for_copy(master, slave)


@spec("G01", "G02")
def test_link_that_swallows_everything_is_noticed_by_silence_on_both_sides(
    start: Start, proxied: Callable[[int], Proxy]
) -> None:
    """Writes go on succeeding, as far as TCP can tell; no send is acknowledged by them."""
    master = start("master", brokerRole="SYNC_MASTER")
    proxy = proxied(master.ha_port)
    slave = start_slave(start, proxy.port)
    with Caller(master.port) as caller:
        wait_for_status(caller, OK)
        proxy.swallows = True
        codes = [caller.send(b"into the void") for _ in range(3)]
        assert OK not in codes
        wait_until(lambda: "nothing from the master" in slave.log_text(), "the slave notices")
        wait_for_status(caller, ResponseCode.SLAVE_NOT_AVAILABLE)
        proxy.swallows = False
        proxy.cut()
        wait_for_status(caller, OK)
    wait_for_copy(master, slave)
    assert slave.log_bytes() == master.log_bytes()


@spec("T07")
def test_slow_link_carries_a_well_formed_stream(start: Start, proxied: Callable[[int], Proxy]) -> None:
    master = start("master")
    proxy = proxied(master.ha_port)
    proxy.bytes_per_second = 20_000
    slave = start_slave(start, proxy.port)
    with Caller(master.port) as caller:
        for number in range(6):
            assert caller.send(bytes([number]) * 5_000) == OK
    wait_for_copy(master, slave)
    assert slave.log_bytes() == master.log_bytes()
    assert proxy.accepted == 1


@spec("H21", "T15")
def test_link_cut_again_and_again_costs_no_byte(start: Start, proxied: Callable[[int], Proxy]) -> None:
    master = start("master")
    proxy = proxied(master.ha_port)
    slave = start_slave(start, proxy.port)
    with Caller(master.port) as caller:
        for number in range(200):
            assert caller.send(bytes([number]) * (number * 97 % 9_000)) == OK
            if number % 10 == 0:
                proxy.cut()
    wait_for_copy(master, slave)
    assert slave.log_bytes() == master.log_bytes()


@spec("H17", "V08")
def test_failing_to_connect_costs_nothing_that_stays(
    start: Start, proxied: Callable[[int], Proxy], nobody: int
) -> None:
    """Every attempt opens a socket to a peer that is not there; a thousand of them leave what one does."""
    proxy = proxied(nobody)
    slave = start_slave(start, proxy.port, haReconnectInterval=1)
    wait_until(lambda: proxy.accepted > 20, "some attempts")
    baseline = (slave.descriptors(), slave.threads())
    wait_until(lambda: proxy.accepted > 1_000, "a thousand attempts")
    assert slave.descriptors() <= baseline[0] + 2
    assert slave.threads() <= baseline[1] + 1
    assert slave.memory_kib() < 200_000


@spec("H02", "H18")
def test_thousand_connections_to_the_replication_port_leave_no_descriptor(start: Start) -> None:
    master = start("master")
    with Caller(master.port) as caller:
        assert caller.send(b"x") == OK
        before = master.sockets()
        assert before >= 3, "two ports and the caller"
        for number in range(1_000):
            with socket.create_connection(("127.0.0.1", master.ha_port)) as sock:
                if number % 2:
                    sock.sendall(b"\xffTandemQ\0\0\0" if number % 4 == 1 else bytes(8))
        wait_until(lambda: master.sockets() <= before, "all closed")
        assert caller.send(b"x") == OK


@spec("H06", "H13")
def test_raw_slave_hears_nothing_before_it_reports_and_is_dropped_when_it_half_closes(start: Start) -> None:
    master = start("master", brokerRole="SYNC_MASTER", haClassicPeers="127.0.0.1", haHousekeepingInterval=20_000)
    with Caller(master.port) as caller, socket.create_connection(("127.0.0.1", master.ha_port), 120) as raw:
        caller.send(b"something to copy")
        raw.setblocking(False)
        with pytest.raises(BlockingIOError):
            raw.recv(1)
        raw.settimeout(120)
        raw.sendall(bytes(8))
        assert raw.recv(8, socket.MSG_WAITALL) == bytes(8)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65_536):
            continue
        assert caller.send(b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE


@spec("H06", "H16")
def test_raw_slave_that_never_reports_is_closed_without_a_byte(start: Start) -> None:
    master = start("master", haClassicPeers="127.0.0.1")
    with socket.create_connection(("127.0.0.1", master.ha_port), 120) as raw:
        assert raw.recv(1) == b""


@spec("H25", "T18")
def test_rubbish_on_the_replication_port_acknowledges_nothing(start: Start) -> None:
    dice = random.Random(13)
    master = start("master", brokerRole="SYNC_MASTER", haClassicPeers="127.0.0.1", slaveTimeout=300)
    memory = master.memory_kib()
    with Caller(master.port) as caller:
        for number in range(60):
            with socket.create_connection(("127.0.0.1", master.ha_port), 120) as raw:
                first = bytes(8) if number % 2 else b""
                raw.sendall(first + dice.randbytes(dice.randrange(1, 4_000)))
                assert caller.send(b"x") in (ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    assert master.memory_kib() < memory + 50_000


@spec("H23", "H01")
def test_replication_port_is_documented_told_at_the_start_and_asked_for(start: Start) -> None:
    assert BrokerConfig().replication_port == 10_912
    assert "10912" in (Path(__file__).parent.parent.parent / "docs" / "internals" / "ha.md").read_text(encoding="utf-8")
    master = start("master")
    assert str(master.start_report["haAddress"]) == f"127.0.0.1:{master.ha_port}"
    with Caller(master.port) as caller:
        assert caller.ask(RequestCode.GET_BROKER_HA_STATUS).code == OK


@spec("H20")
def test_slave_stops_at_once_when_told(start: Start) -> None:
    """Told while it waits for data, connected or not. A stop that waited for a timer would take an hour."""
    hour_ms = 3_600_000
    master = start("master", haHousekeepingInterval=hour_ms)
    slave = start_slave(
        start,
        master.ha_port,
        haHousekeepingInterval=hour_ms,
        haReconnectInterval=hour_ms,
        metadataSyncInterval=hour_ms,
        slaveTimeout=hour_ms,
    )
    with Caller(master.port) as caller:
        assert caller.send(b"one") == OK
        wait_for_copy(master, slave)
        stop(slave)
        assert caller.send(b"two") == OK
        slave.start()
        wait_for_copy(master, slave)
    master.kill()
    ends = ("closed by the peer", "Connection reset by peer")  # a reset if the master had not read all reports
    wait_until(lambda: any(end in slave.log_text() for end in ends), "the slave notices")
    stop(slave)


def stop(program: Program) -> None:
    said = program.log_text().count("broker: stopped")
    program.process.terminate()
    wait_until(lambda: program.log_text().count("broker: stopped") > said, "it stopped")
    assert program.process.wait(WAIT_S) == 0
    program.stop()


def is_refused(port: int) -> bool:
    try:
        with Caller(port) as caller:
            caller.send(b"one client more")
    except NetworkError:
        return True
    return False


def test_slave_starts_again_while_clients_hold_all_places_of_theirs(start: Start) -> None:
    master = start("master", maxConnections=5)
    slave = start_slave(start, master.ha_port)
    with ExitStack() as held:
        clients = [held.enter_context(Caller(master.port)) for _ in range(5)]
        assert clients[0].send(b"before") == OK
        wait_for_copy(master, slave)
        slave.kill()
        # While the master takes the slave for connected, every client of this machine could be the slave.
        wait_until(lambda: is_refused(master.port), "no place is left for a client")
        assert clients[0].send(b"meanwhile") == OK
        end = int(clients[0].ask(RequestCode.TANDEM_PEER_INFO).fields["logEnd"])
        slave.start()
        wait_until(lambda: slave.log_end() == end, "the slave has all")
