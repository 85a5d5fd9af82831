"""Reports of proxies: which gRPC clients consume behind them.

Source: docs/reference/grpc.md, "What operators see".
"""

from tandemq.boundary import Now, Turn
from tandemq.broker.features.groups.membership import create_retry_topic
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.proxied_consumers import ProxiedConsumers
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.proxied import ProxiedAnswer, ProxiedRefusal, ProxiedReport

REPORT_BYTES_MAX = 4 << 20


class ProxiedConsumersProcessor(Feature):
    """Takes the reports of proxies."""

    def __init__(self, kernel: Kernel, consumers: ProxiedConsumers) -> None:
        """`consumers`: those behind proxies."""
        self._kernel = kernel
        self._consumers = consumers

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.TANDEM_PROXIED_CONSUMERS: Request(self._on_report)}

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        self._consumers.link_closed(link)

    def _on_report(self, link: Link, command: Command, now: Now) -> Command | None:
        if len(command.body) > REPORT_BYTES_MAX:
            raise ProtocolError(f"the report has {len(command.body)} bytes, the maximum is {REPORT_BYTES_MAX}")
        report = decode_body(command.body, ProxiedReport, "report of a proxy")
        refused = self._consumers.take(report, link.number, now.mono_ms)
        unwanted = {refusal.group for refusal in refused}
        for name in dict.fromkeys(each.consumer.group_name for each in report.joined):
            if name in unwanted:
                continue
            try:
                # Tools find the brokers of a group by the route of its retry topic.
                create_retry_topic(self._kernel, name, now)
            except ProtocolError as error:
                refused.append(ProxiedRefusal(name, "", str(error)))
        return command.answer(ResponseCode.SUCCESS, body=dumps(ProxiedAnswer(refused)))
