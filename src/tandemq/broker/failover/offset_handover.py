"""Handing consumer offsets and delay progress to the member that serves reads next (TANDEM_HAND_OFFSETS)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.connections.member_requests import MemberRequests
from tandemq.broker.send.delay import DelayedMessages
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

HAND_TIMEOUT_MS = 2_000


class ReceivedOffsets(NamedTuple):
    """Offsets of another member that are being saved."""

    change: int
    """Number of the change of tables; see `Saver.asked`."""
    giver: int
    """Broker id of the member that hands over."""
    token: int
    """Version of the group's record that the handover belongs to."""


class OffsetHandover:
    """Both sides of a handover."""

    def __init__(self, offsets: ConsumerOffsets, delay: DelayedMessages, saver: Saver, members: MemberRequests) -> None:
        """Take the collaborators."""
        self._offsets = offsets
        self._delay = delay
        self._saver = saver
        self._members = members
        self._unsaved: list[ReceivedOffsets] = []

    def send(
        self, address: str, giver: int, token: int, on_stored: Callable[[bool, Now], None], turn: Turn, now: Now
    ) -> None:
        """Send our offsets to a member, "ip:port". `on_stored` is called with whether they were saved there."""
        command = Command(
            Code.TANDEM_HAND_OFFSETS,
            fields={"from": str(giver), "token": str(token)},
            body=dumps_java({"offsets": self._offsets.as_json(), "delays": self._delay.as_json()}),
        )

        def on_answer(answer: Command | None, at: Now) -> None:
            on_stored(answer is not None and answer.code == ResponseCode.SUCCESS, at)

        self._members.call(address, command, HAND_TIMEOUT_MS, on_answer, turn, now)

    def receive(self, giver: int, token: int, table: dict[str, Any]) -> None:
        """Merge what a member hands over. It counts once it is saved.

        Raises:
            StoreDamaged, ProtocolError: it is not a table of offsets.
        """
        self._offsets.merge_positions(table.get("offsets") or {})
        self._delay.advance(table.get("delays") or {})
        self._offsets.save(is_awaited=True)
        self._delay.save(is_awaited=True)
        self._unsaved.append(ReceivedOffsets(self._saver.asked, giver, token))

    def take_saved(self, settled: int) -> list[ReceivedOffsets]:
        """Return what was received with changes up to number `settled`, which are on the device or failed."""
        done = [received for received in self._unsaved if received.change <= settled]
        self._unsaved = [received for received in self._unsaved if received.change > settled]
        return done
