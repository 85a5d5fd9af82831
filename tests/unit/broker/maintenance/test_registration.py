"""Registration at name servers: repeated, and retried on a new connection when a name server stops responding."""

from pathlib import Path

from tandemq.codec.remoting.frame import encode_command
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.harness import Harness

SILENT, OTHER = "10.0.0.8:9876", "10.0.0.9:9876"


class Registered:
    """A broker with two name servers, of which one may stop responding while it stays connected."""

    def __init__(self, path: Path) -> None:
        self.broker = Harness(path, name_servers=(SILENT, OTHER))
        self.is_silent = False
        self.registrations: dict[str, list[int]] = {SILENT: [], OTHER: []}
        """Times of the registrations at each name server."""
        self._links: dict[int, str] = {}
        self._seen_closes = 0

    def run(self, ms: int) -> None:
        """Advance the time second by second; name servers accept connections, and respond unless they are silent."""
        for _ in range(ms // 1_000):
            self.broker.pass_time(1_000)
            self._carry()

    def _carry(self) -> None:
        broker = self.broker
        for connect in broker.connects:
            self._links[connect.link] = connect.address
            broker.open(connect.link, connect.kind, connect.address)
        broker.connects.clear()
        for link, address in self._links.items():
            for command in broker.inbox.pop(link, []):
                assert command.code == RequestCode.REGISTER_BROKER
                self.registrations[address].append(broker.now.mono_ms)
                if not (self.is_silent and address == SILENT):
                    broker.turn([(link, encode_command(command.answer(ResponseCode.SUCCESS)))])
        for link, _ in broker.closes[self._seen_closes :]:
            del self._links[link]
            broker.close(link)
        self._seen_closes = len(broker.closes)

    @property
    def registered(self) -> set[str]:
        return self.broker.node.registration.registered


@spec("G03")
def test_registration_at_a_silent_name_server_times_out_after_6s_and_the_other_gets_all(tmp_path: Path) -> None:
    assert BrokerConfig().register_ms == 30_000
    assert BrokerConfig().register_timeout_ms == 6_000
    between = Registered(tmp_path)
    between.run(5_000)
    assert between.registered == {SILENT, OTHER}
    between.is_silent = True
    between.run(37_000)
    (reason,) = {reason for _, reason in between.broker.closes}
    assert reason == "no answer in time"
    assert between.registered == {OTHER}
    before = {address: len(times) for address, times in between.registrations.items()}
    between.run(60_000)
    assert len(between.registrations[SILENT]) - before[SILENT] >= 5, "on a new connection each time"
    assert between.registered == {OTHER}
    assert (
        max(
            after - at
            for at, after in zip(between.registrations[OTHER], between.registrations[OTHER][1:], strict=False)
        )
        <= 31_000
    )
    between.is_silent = False
    between.run(10_000)
    assert between.registered == {SILENT, OTHER}
