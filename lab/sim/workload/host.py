"""A client's machine, and the process on it, if any.

Raw clients run all the time. An application may be killed or leave, and returns as another process of the same name.
"""

from random import Random

from lab.sim.workload.application import Application
from lab.sim.workload.malformed_peer import MalformedPeer
from lab.sim.workload.raw_client import RawClient
from lab.sim.world.disk import SimDisk
from lab.sim.world.network import Network
from lab.sim.world.process import Process, SimMachine
from lab.sim.world.world import World


class ClientHost:
    """A client's machine."""

    def __init__(self, world: World, network: Network, ip: str, node: RawClient | MalformedPeer | Application) -> None:
        """A machine on which the client runs."""
        self.ip = ip
        self.name = node.name
        self.application = node if isinstance(node, Application) else None
        self._world = world
        self._network = network
        self._node = node
        self._machine = SimMachine(world, node.name, ip, SimDisk(Random(0)))
        self.process: Process | None = None
        self._comes_back = False
        """Whether it was started again while its application was still leaving."""
        self.start()

    def start(self) -> None:
        """Start the client unless it runs; a leaving application is started again once it has left."""
        self._comes_back = self.process is not None
        if self.process is None:
            process = self.process = Process(self._world, self._network, self._machine, self.name)
            process.after_turn = self._after_turn
            process.start(self._node)

    def wake(self) -> None:
        """Drive the node now: another one has put work into it."""
        assert self.process is not None, "it runs"
        self.process.wake()

    def kill(self) -> None:
        """End an application's process; the kernel resets its connections."""
        assert self.application is not None, "raw clients are not killed"
        if self.process is not None:
            self.process.kill()
            self._network.forget(self.process, notify=True)
            self.process = None
            self.application.killed()

    def leave(self) -> None:
        """Let an application close its client and then end."""
        assert self.application is not None, "raw clients do not leave"
        if self.process is not None:
            self._comes_back = False
            self.application.leave()
            self.process.wake()

    def _after_turn(self, _process: Process) -> None:
        if self.application is not None and self.application.has_left:
            self.kill()
            if self._comes_back:
                self.start()
