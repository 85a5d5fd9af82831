"""The last change of a group's master as a timeline, from what its brokers have recorded.

A broker records when it claimed the group's record, prepared its log, began to serve and got its permissions, each with
the epoch. When the session of the old master ended is recorded nowhere; the console adds when that broker last answered
it, if it was asked shortly before. Times are those of the brokers' clocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandemq.console.web.translation import Phrase
from tandemq.console.web.words import STAGES

CLAIMING, WRITABLE, HANDING, FOLLOWING, IN_SYNC = "claiming", "may be", "handing over", "slave", "in sync"
PERMITTED = {
    "may be read and written": "accepts and delivers messages",
    "may be read": "delivers messages",
    "may be written": "accepts messages",
    "may neither be read nor written": "neither accepts nor delivers messages",
}
"""Permissions of a member as it records them, in words."""
BEFORE_MS = 60_000
"""A handover that began longer before the new epoch does not belong to it."""
ANSWER_MS = 15_000
"""The same for the last answer of the old master."""
_FOUNDING = "the group begins"


@dataclass(frozen=True, slots=True)
class Step:
    """A step. `after_ms`: since the first step; negative before it."""

    at_ms: int
    after_ms: int
    brokers: tuple[int, ...]
    what: Phrase


@dataclass(frozen=True, slots=True)
class Failover:
    """The last change of a group's master."""

    group: str
    epoch: int
    master: int
    is_planned: bool
    reason: str
    steps: tuple[Step, ...]
    outage_ms: int | None
    """From the order, or the last answer of the old master, until the new one accepts messages; None: unknown."""
    session_ms: int | None
    """Length of a session at the registry; None: unknown."""

    @property
    def at_ms(self) -> int:
        """When the new master began, or the old one was ordered to hand over."""
        return next(step.at_ms for step in self.steps if step.after_ms >= 0)


def words_of(text: str) -> Phrase:
    """Return an entry of a broker's timeline in words: "claiming: broker 1 follows 0"."""
    stage, colon, reason = text.partition(": ")
    if stage in STAGES:
        return Phrase("{stage}: {why}", {"stage": Phrase(STAGES[stage]), "why": reason})
    if stage in PERMITTED and colon:
        return Phrase("{stage}: {why}", {"stage": Phrase(PERMITTED[stage]), "why": reason})
    if stage == IN_SYNC and colon:
        return Phrase("in sync: brokers {ids}", {"ids": reason})
    return Phrase("{text}", {"text": text})


def last_failover(
    group: str, timeline: Iterable[Mapping[str, Any]], lost_ms: Mapping[int, int], session_ms: int | None
) -> Failover | None:
    """Return the last change of a group's master; None if there was none, or its entries are gone.

    Args:
        timeline: entries with `ms`, `epoch`, `text`, `brokers`, in any order.
        lost_ms: when a member last answered the console before it stopped to answer, by broker id.
    """
    entries = sorted(timeline, key=lambda entry: (int(entry["ms"]), int(entry["epoch"])))
    claims = [entry for entry in entries if _stage(entry) == CLAIMING and _reason(entry) != _FOUNDING]
    if not claims:
        return None
    epoch = max(int(entry["epoch"]) for entry in claims)
    claim = next(entry for entry in claims if int(entry["epoch"]) == epoch)
    master = int(claim["brokers"][0])
    handing = [entry for entry in entries if _stage(entry) == HANDING and _is_before(entry, claim, BEFORE_MS)]
    own = [entry for entry in entries if int(entry["epoch"]) == epoch and entry["brokers"][0] == master]
    shown = [*handing[-1:], *_until_writable(own), *_followed(entries, epoch, master, int(claim["ms"]))]
    shown.sort(key=lambda entry: int(entry["ms"]))
    begin_ms = int(shown[0]["ms"])
    steps = [
        Step(int(entry["ms"]), int(entry["ms"]) - begin_ms, tuple(entry["brokers"]), _step_words(entry))
        for entry in shown
    ]
    answered = [] if handing else _last_answer(lost_ms, master, begin_ms)
    steps = [*answered, *steps]
    writable = next((entry for entry in own if str(entry["text"]).startswith("may be read and written")), None)
    is_measured = writable is not None and bool(handing or answered)
    return Failover(
        group,
        epoch,
        master,
        bool(handing),
        _reason(claim),
        tuple(steps),
        int(writable["ms"]) - steps[0].at_ms if writable is not None and is_measured else None,
        session_ms,
    )


def _stage(entry: Mapping[str, Any]) -> str:
    return str(entry["text"]).partition(": ")[0]


def _reason(entry: Mapping[str, Any]) -> str:
    return str(entry["text"]).partition(": ")[2]


def _step_words(entry: Mapping[str, Any]) -> Phrase:
    """Return a step in words; the reason is the same for all of them, and stands above."""
    stage = _stage(entry)
    known = STAGES.get(stage) or PERMITTED.get(stage)
    return Phrase(known) if known is not None else words_of(str(entry["text"]))


def _is_before(entry: Mapping[str, Any], claim: Mapping[str, Any], most_ms: int) -> bool:
    return 0 <= int(claim["ms"]) - int(entry["ms"]) <= most_ms and int(entry["epoch"]) < int(claim["epoch"])


def _until_writable(own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the steps of the new master until it serves, without those that come later in its epoch."""
    found: list[Mapping[str, Any]] = []
    for entry in own:
        if _stage(entry) != IN_SYNC:
            found.append(entry)
        if _stage(entry).startswith(WRITABLE):
            break
    return found


def _followed(
    entries: Sequence[Mapping[str, Any]], epoch: int, master: int, from_ms: int
) -> Iterable[Mapping[str, Any]]:
    """Yield when each other member became a replica of the new master first, and when one was in sync."""
    later = [entry for entry in entries if int(entry["epoch"]) == epoch and int(entry["ms"]) >= from_ms]
    known = {master}
    for entry in later:
        if _stage(entry) == FOLLOWING and entry["brokers"][0] not in known:
            known.add(entry["brokers"][0])
            yield entry
    yield from [entry for entry in later if _stage(entry) == IN_SYNC and "," in _reason(entry)][:1]


def _last_answer(lost_ms: Mapping[int, int], master: int, begin_ms: int) -> list[Step]:
    known = [
        (at_ms, broker_id)
        for broker_id, at_ms in lost_ms.items()
        if broker_id != master and 0 <= begin_ms - at_ms <= ANSWER_MS
    ]
    return [
        Step(at_ms, at_ms - begin_ms, (broker_id,), Phrase("answered this console for the last time"))
        for at_ms, broker_id in sorted(known)[-1:]
    ]
