"""A gRPC server and a client of it, joined in memory."""

from collections.abc import Mapping

from lab.grpc_client import ClientCall, GrpcClient
from tandemq.boundary import Now
from tandemq.grpc.server import GrpcServer, Method

LINK = 1


class Joined:
    """A client on a connection to a server; what each sends reaches the other in `settle`."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        message_bytes_max: int = 1 << 20,
        unfinished_bytes_max: int = 1 << 22,
        window: int = 1 << 30,
    ) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        self.server = GrpcServer(methods, message_bytes_max, unfinished_bytes_max)
        self.client = GrpcClient(window=window)
        self.closed: str | None = None
        """Why the server has closed the connection."""
        self.server.opened(LINK, "10.0.0.1:4000", self.now)

    def call(self, path: str, *messages: bytes, **more: object) -> ClientCall:
        call = self.client.start(path, *messages, **more)  # type: ignore[arg-type]
        self.settle()
        return call

    def raw(self, data: bytes) -> None:
        """Send bytes of a client that does not follow the protocol."""
        self.settle()
        self.server.receive(LINK, data, self.now)
        self.settle()

    def settle(self) -> None:
        """Exchange bytes until nobody has any."""
        while True:
            up = self.client.take_output()
            if up and self.closed is None:
                self.server.receive(LINK, up, self.now)
            sends, ended = self.server.take_output(self.now)
            for _, buffers in sends:
                self.client.receive(b"".join(buffers))
            for _, reason in ended:
                self.closed = reason
                self.client.lost()
            if not (up or sends or ended):
                return

    def pass_ms(self, ms: int) -> None:
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)
