"""Interface of pulls for other features."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tandemq.boundary import Buffer, Now, Turn
from tandemq.broker.filter.selector import MessageSelector
from tandemq.broker.kernel.pull_counters import PullCounters
from tandemq.broker.kernel.verification import Mismatch
from tandemq.codec.remoting.requests import PullFields
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.not_cached import NotCached
from tandemq.storage.consume_queue import ConsumeQueue

Resume = Callable[[StoreError | None, Turn, Now], None]
"""Goes on with a request whose bytes were read from the device, or could not be."""
ENGINE_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
"""Codes of the pulls that the engine takes."""
LINK_BYTES_MAX = 8 << 20
"""Maximum of unsent bytes of a connection; its further pulls wait until the client has read some."""


class PullRefused(Exception):
    """A pull that gets no messages: code, remark and fields of the response."""

    def __init__(
        self, code: ResponseCode, remark: str, forbidden_type: int = 0, fields: dict[str, str] | None = None
    ) -> None:
        """Keep the parts of the response.

        Args:
            code: of the response.
            remark: the reason.
            forbidden_type: what forbids it, as clients of 5.x read it; or 0.
            fields: of the response, if not that.
        """
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.fields = fields or ({"forbiddenType": str(forbidden_type)} if forbidden_type else {})


class PullAnswer(NamedTuple):
    """Code and offsets of an answer; `end` is the offset behind the last message."""

    code: int
    next_offset: int
    min_offset: int
    end: int
    delta: int | None = None
    """Number that the client adds to the queue offsets in the messages; None: 0."""

    def fields(self, suggested: int = 0) -> dict[str, str]:
        """Return the fields of the response. `suggested`: id of the member that the client should read from."""
        fields = {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(self.next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.end),
        }
        return fields if self.delta is None else fields | {"offsetDelta": str(self.delta)}


class Messages(NamedTuple):
    """Messages of a queue for a response, and why there are no more."""

    buffers: Sequence[Buffer]
    number: int
    """Number of messages."""
    size: int
    next_offset: int
    """Queue offset behind the last examined entry."""
    mismatch: Mismatch | None = None
    """Set if the entry at `next_offset` is damaged, or its record."""
    waits_at: int | None = None
    """Log offset of the message at `next_offset`, if it is damaged and waits for its repair."""
    cost: int = 0
    """Cost of evaluating an SQL filter (`evaluation_cost`)."""


class AnswerView(Protocol):
    """How the answer to a pull is shown to the client, where its offsets are not those of the queue that was read."""

    def shown(self, answer: PullAnswer, written_end: int) -> PullAnswer:
        """Return the answer for the client. `written_end`: queue offset behind messages that may not be shown yet."""


class Pulls(ABC):
    """The pulls of one broker."""

    counters: PullCounters

    @abstractmethod
    def take(self, link: int, command: Command, turn: Turn, now: Now, view: AnswerView | None = None) -> Command | None:
        """Answer or hold any pull; returns a response only to refuse it. `view`: how the answer is shown."""

    @abstractmethod
    def check_readable(self) -> None:
        """Refuse all pulls while the broker's own permission lacks READ.

        Raises:
            PullRefused: it lacks it.
        """

    @abstractmethod
    def visible_end(self, queue: ConsumeQueue, log_limit: int | None = None, *, may_wait: bool = True) -> int:
        """Return the queue offset behind the last message that may be shown; `log_limit`: None for that of consumers.

        Raises:
            NotCached: entries have to be read from the device first, and `may_wait` is false; see `read_later`.
            StoreError: the entries of the queue cannot be read.
        """

    @property
    @abstractmethod
    def held_count(self) -> int:
        """Number of pulls that wait for messages."""

    @abstractmethod
    def refuse_forbidden(self, queue: ConsumeQueue, turn: Turn) -> None:
        """Refuse the pulls held on a queue that an operator has forbidden since they came."""

    @abstractmethod
    def move_held(self, link: int, offset_for: Callable[[PullFields], int | None], turn: Turn) -> None:
        """Answer the held pulls of a connection whose offset an operator has set; None: it has not."""

    @abstractmethod
    def end_held(self, queue: ConsumeQueue, turn: Turn) -> None:
        """Answer the pulls held on a queue that takes no more messages."""

    # Reads by other features.

    @abstractmethod
    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        selector: MessageSelector,
        most: int,
        *,
        bytes_max: int = 0,
        may_wait: bool = False,
    ) -> Messages:
        """Read messages of a queue that consumers may see, from a queue offset on. Damage is reported as for a pull.

        Args:
            most, bytes_max: limits of their number and size; 0: that of a pull.
            may_wait: whether it may wait for the device.
        Raises:
            OffsetGone: the messages were deleted.
            NotCached: they have to be read from the device first; see `read_later`.
            DiskFailed: the device failed.
        """

    @abstractmethod
    def must_wait(self, missing: NotCached) -> bool:
        """Whether a read has to wait for the device: what it needs was read a moment ago and is missing again."""

    @abstractmethod
    def note_time(self, now: Now) -> None:
        """Take the time of a turn, before it begins: jobs that end may go on with requests, which read again."""

    @abstractmethod
    def read_later(self, missing: NotCached, link: int, resume: Resume) -> bool:
        """Have what `read` lacks read from the device for a request on a connection, and then call `resume`.

        It is called once if equal ones wait for the same bytes. Returns False if too many requests wait already.

        Raises:
            DiskFailed: the device does not return.
        """

    @abstractmethod
    def has_room(self, link: int) -> bool:
        """Whether a response with messages may be sent on a connection in this turn."""

    @abstractmethod
    def will_have_room(self, link: int) -> bool:
        """Whether the next turn may send one, since the connection has taken enough of the earlier ones."""

    @abstractmethod
    def note_sent(self, link: int, messages: Messages) -> None:
        """Count messages read for a response on a connection against the budget of the turn."""
