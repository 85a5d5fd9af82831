"""The life of producers, consumers and administration clients, from `start` to `close`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.core.operations import Steps
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, LocalError
from tandemq.model.access import Credentials

Core = TypeVar("Core")
T = TypeVar("T")


class AsyncClient(ABC, Generic[Core]):
    """A client that has a shell, and the part of its node that does the work, once it is started."""

    _kind: ClassVar[str] = "consumer"
    """Name of the client in errors."""

    def __init__(
        self, name_servers: str, client_id: str, tls: ClientTls | bool, credentials: Credentials | None
    ) -> None:
        """Create a client that is not connected yet. Arguments as `make_config`."""
        self._name_servers = name_servers
        self._client_id = client_id
        self._tls = tls
        self._credentials = credentials
        self._shell: Shell | None = None
        self._core: Core | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start the client."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for requests in flight, within their timeouts, then close; has no effect a second time."""

    def _open(self) -> Shell:
        """Open the shell.

        Raises:
            ConfigError: an address is not "host:port".
            LocalError: the client is started already.
        """
        if self._shell is not None and self._shell.is_in_use:
            raise LocalError("it is started already", hint="call `start` once, or use `async with`")
        self._shell = Shell(make_config(self._name_servers, self._client_id, self._tls, self._credentials))
        return self._shell

    def _running(self) -> tuple[Shell, Core]:
        """Return the running parts.

        Raises:
            ClosedError: the client is not started, or closed.
            LocalError: it belongs to another event loop.
        """
        shell, core = self._shell, self._core
        if shell is None or core is None:
            raise self._not_started()
        if not shell.is_usable():
            shell.check_open()
        return shell, core

    def _not_started(self) -> ClosedError:
        return ClosedError(f"the {self._kind} is not started", hint="use it with `async with`")

    async def _run(self, operation: Steps[T]) -> T:
        shell, _ = self._running()
        return await shell.done(shell.node.runner.start(operation, shell.now))

    async def _close(self, *, after_error: bool) -> None:
        if self._shell is not None and not self._shell.is_closed:
            await self._shell.close(after_error=after_error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(after_error=error is not None)
