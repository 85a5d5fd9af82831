"""What the loop of a server reports to the service manager: that it turns, and whether it is ready."""

from tandemq.real.clock import read_clock
from tandemq.real.loop import Loop
from tandemq.real.service_manager import Supervisor
from tandemq.telemetry.collection import MonitoredNode


def report_to(supervisor: Supervisor | None, loop: Loop, node: MonitoredNode, address: str) -> None:
    """Have a loop report from its first turn on; before `Loop.run`.

    Args:
        supervisor: gets the reports; None: there are none.
        loop: the loop.
        node: the node that it runs.
        address: address for clients, for the text of the reports.
    """
    if supervisor is None:
        return

    def report() -> None:
        reasons = node.not_ready(read_clock())
        supervisor.alive(f"not ready: {'; '.join(reasons)}" if reasons else f"serving at {address}")

    loop.report_alive(report, supervisor.report_ns)
