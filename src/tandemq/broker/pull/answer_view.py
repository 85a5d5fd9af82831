"""How the answer to a pull is shown to the client, where its offsets are not those of the queue that was read."""

from typing import NamedTuple, Protocol


class PullAnswer(NamedTuple):
    """Code and offsets of an answer; `end` is the offset behind the last message."""

    code: int
    next_offset: int
    min_offset: int
    end: int
    delta: int | None = None
    """What the client adds to the queue offsets in the messages; None: nothing."""


class AnswerView(Protocol):
    """Translates answers to one pull."""

    def shown(self, answer: PullAnswer, written_end: int) -> PullAnswer:
        """Return what the client is sent. `written_end`: queue offset behind messages that may not be shown yet."""
