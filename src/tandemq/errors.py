"""All errors in one tree. The class says who caused an error; `retriable` and `hint` say what to do about it.

TandemError
├── LocalError        a mistake of the caller: bad argument, wrong state, bad configuration
│   ├── ConfigError
│   ├── InvalidMessage    a ValueError
│   └── ClosedError
├── RemoteError       the peer answered with an error
│   ├── NoRoute       no name server knows the topic, or no broker of it allows the operation
│   └── ProtocolError the peer violated the protocol; its connection is closed
│       ├── FrameError
│       └── AuthenticationError  the peer did not prove that it knows the secret
├── NetworkError      no answer: connection refused, connection lost, timeout (unknown outcome)
│   ├── NotConnected  the request was not sent, so it was not carried out
│   │   └── WrongProtocol  the server speaks another protocol, or only TLS
│   ├── OutcomeUnknown it was sent and not answered: it may have been carried out
│   └── NoReply       no consumer replied to a request in time
└── StoreError        the store could not carry out an operation
    ├── RecordTooLarge
    ├── DiskFull      nothing was written; the log stays readable; writes succeed again once there is space
    ├── DiskFailed    the disk returned an error; the store refuses writes until the broker is restarted
    ├── StoreLocked   another process holds the store directory
    ├── StoreDamaged  stored bytes are not valid
    └── OffsetGone    the requested bytes were deleted by retention or truncated
"""


class TandemError(Exception):
    """Root of all errors of this package. `retriable`: the same call may succeed later or on another broker."""

    retriable = False
    refresh_route = False

    def __init__(self, message: str, *, hint: str = "", code: int | None = None) -> None:
        """Create an error.

        Args:
            message: what happened.
            hint: what the reader can do about it.
            code: the RocketMQ response code, if a peer answered with one.
        """
        super().__init__(message)
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        """Return the message, and the hint in parentheses."""
        text = super().__str__()
        return f"{text} ({self.hint})" if self.hint else text


class LocalError(TandemError):
    """A mistake of the caller: bad argument, wrong state, bad configuration."""


class ConfigError(LocalError):
    """A setting is unknown, malformed, or contradicts another."""


class InvalidMessage(LocalError, ValueError):
    """A message that no broker would accept; raised where it is created."""


class ClosedError(LocalError):
    """An operation on a closed object."""


class RemoteError(TandemError):
    """The peer answered with an error code."""


class NoRoute(RemoteError):
    """No name server knows the topic, or none of its brokers allows the operation."""

    retriable = True
    refresh_route = True


class ProtocolError(RemoteError):
    """The peer violated the protocol."""


class FrameError(ProtocolError):
    """Bytes that are not a valid frame: its lengths contradict each other or exceed the limit."""


class AuthenticationError(ProtocolError):
    """The peer did not prove that it knows a secret: of replication, or the key of a user."""


class NetworkError(TandemError):
    """No answer; if a request was sent, its outcome is unknown."""

    retriable = True
    refresh_route = True


class NotConnected(NetworkError):
    """The request was not sent, so it was not carried out."""


class WrongProtocol(NotConnected):
    """The server at the address does not speak the protocol, or only with TLS: it carried out nothing."""


class OutcomeUnknown(NetworkError):
    """The request was sent and not answered: it may have been carried out or not."""


class NoReply(NetworkError):
    """No consumer replied to a request in time: the request may have been carried out, and its reply is dropped."""


class StoreError(TandemError):
    """The store could not carry out an operation."""


class RecordTooLarge(StoreError):
    """A message, topic or property list exceeds its limit; nothing was written."""


class DiskFull(StoreError):
    """No space on the device, or no descriptor for a file; nothing was written and the log is unchanged."""

    retriable = True


class DiskFailed(StoreError):
    """The disk returned an error; the store refuses writes until the broker is restarted."""


class StoreLocked(StoreError):
    """Another process holds the store directory."""


class StoreDamaged(StoreError):
    """Stored bytes are not valid, or files are missing."""


class OffsetGone(StoreError):
    """The requested bytes were deleted by retention or truncated."""
