"""All errors, one tree: whose fault, whether to try again, and what an operator can do.

TandemError
├── LocalError        the caller's own mistake: bad argument, wrong state, bad configuration
│   ├── ConfigError
│   ├── InvalidMessage    a ValueError
│   └── ClosedError
├── RemoteError       the peer answered, and the answer is no
│   ├── NoRoute       no name server knows the topic, or nobody offers what is needed of it
│   └── ProtocolError the peer broke the protocol; its connection is closed
│       ├── FrameError
│       └── AuthenticationError  the peer did not prove that it knows the secret
├── NetworkError      nobody answered: refused, cut, timed out (the outcome of a request is unknown)
│   ├── NotConnected  the request did not leave this machine: it was not carried out
│   └── OutcomeUnknown it left, and no answer came: it may have been carried out
└── StoreError        the store said no
    ├── RecordTooLarge
    ├── DiskFull      nothing written; the log stays readable; goes away when space comes back
    ├── DiskFailed    the disk returned an error; the store takes no more writes until restarted
    ├── StoreLocked   another process has this directory
    ├── StoreDamaged  bytes that should be valid are not
    └── OffsetGone    asked for bytes that are no longer there (deleted by retention)
"""


class TandemError(Exception):
    """Root of all errors of this package. `retriable`: the same call may succeed later or on another broker."""

    retriable = False
    refresh_route = False

    def __init__(self, message: str, *, hint: str = "", code: int | None = None) -> None:
        """Say what happened; `hint` says what to do about it; `code` is a response code if a peer gave one."""
        super().__init__(message)
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        """What, then what to do."""
        text = super().__str__()
        return f"{text} ({self.hint})" if self.hint else text


class LocalError(TandemError):
    """The caller's own mistake."""


class ConfigError(LocalError):
    """A setting is unknown, malformed, or contradicts another."""


class InvalidMessage(LocalError, ValueError):
    """A message that cannot be sent, found where it is made."""


class ClosedError(LocalError):
    """The object was closed."""


class RemoteError(TandemError):
    """The peer answered with an error code."""


class NoRoute(RemoteError):
    """No name server knows the topic, or none of its brokers offers what is needed."""

    retriable = True
    refresh_route = True


class ProtocolError(RemoteError):
    """The peer sent what the protocol does not allow."""


class FrameError(ProtocolError):
    """Bytes that are no frame: lengths that contradict each other or exceed the limit."""


class AuthenticationError(ProtocolError):
    """The peer did not prove that it knows the secret of replication."""


class NetworkError(TandemError):
    """No answer: the outcome of the request, if one was sent, is unknown."""

    retriable = True
    refresh_route = True


class NotConnected(NetworkError):
    """The request did not leave this machine: it was not carried out."""


class OutcomeUnknown(NetworkError):
    """The request left and no answer came: it may have been carried out or not."""


class StoreError(TandemError):
    """The store could not do it."""


class RecordTooLarge(StoreError):
    """A message, topic or property list is over its limit; nothing was written."""


class DiskFull(StoreError):
    """No space; nothing was written and the log is as before."""

    retriable = True


class DiskFailed(StoreError):
    """The disk returned an error; the store refuses writes from now on."""


class StoreLocked(StoreError):
    """Another process holds the store directory."""


class StoreDamaged(StoreError):
    """Stored bytes that should be valid are not."""


class OffsetGone(StoreError):
    """The bytes asked for were deleted or cut."""
