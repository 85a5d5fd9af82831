"""De-duplication of a push consumer: its settings, and the protocol of a store of handled messages.

    PushConsumer(…, deduplicate=True)                                  a window in memory: this member, this process
    PushConsumer(…, deduplicate=Deduplication(window=100_000))         a larger one
    PushConsumer(…, deduplicate=Deduplication(store=SQLiteStore("handled.db")))      all members, and across restarts

Guarantees: docs/reference/guarantees.md, "duplicates in the client".
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tandemq.errors import ConfigError


class DuplicateStore(Protocol):
    """Keeps the messages that a consumer group has handled, outside the process. Used by one consumer, on one loop.

    Any exception counts as a failure of the store; so do a cancellation, a result of another type, and a call that
    takes longer than `CALL_TIMEOUT_S` seconds, which is cancelled. Each call runs in a task of its own.
    """

    async def find(self, group: str, identities: Sequence[str]) -> Collection[str]:
        """Return the identities whose messages were handled.

        Args:
            group: consumer group.
            identities: "topic:unique key" of each message, at most 400 characters and at most `BATCH_MAX` of them.
        """

    async def add(self, group: str, identities: Sequence[str]) -> None:
        """Note that these messages were handled; when it returns, every later `find` of any member must see it."""

    async def close(self) -> None:
        """Release connections and files; called when the consumer is closed."""


BATCH_MAX = 64
"""Maximum number of messages in one call of a store."""
CALL_TIMEOUT_S = 5.0


class StoreFailure(Enum):
    """Behaviour of a consumer while its store fails."""

    WAIT = "wait"
    """No message is delivered, and acknowledgements wait, until the store works again."""
    DELIVER = "deliver"
    """Messages are delivered unless the window in memory has them, and acknowledged without a note in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication:
    """How a consumer recognises duplicates, by topic and unique key."""

    window: int = 10_000
    """Number of handled messages that are remembered in memory per queue: the latest ones."""
    window_total: int = 200_000
    """Maximum number of remembered messages of all queues; about 200 bytes each."""
    store: DuplicateStore | None = None
    """Remembers handled messages outside this process too."""
    when_store_fails: StoreFailure = StoreFailure.WAIT

    def __post_init__(self) -> None:
        """Validate the window.

        Raises:
            ConfigError: the window is below 1.
        """
        if self.window < 1:
            raise ConfigError(f"window is {self.window}; it must be at least 1", hint="leave out `deduplicate`")


def window_options(deduplicate: bool | Deduplication) -> dict[str, int]:
    """Return the fields of `ConsumerOptions` for a consumer's argument `deduplicate`."""
    if deduplicate is False:
        return {}
    settings = Deduplication() if deduplicate is True else deduplicate
    return {"duplicate_window": settings.window, "duplicate_window_total": settings.window_total}
