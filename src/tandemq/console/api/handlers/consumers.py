"""Consumer groups: list, one group, create, delete; reset of offsets; dead letters."""

from tandemq.client.admin.groups import ResetTarget
from tandemq.console.api.handlers.parts import part_of
from tandemq.console.api.operation import ApiCall
from tandemq.console.api.requests import (
    ChosenLetters,
    ConfirmQuery,
    GroupPath,
    LetterQuery,
    ListQuery,
    NewGroup,
    ResendOrder,
    ResetOrder,
    ResetPlan,
    ToEarliest,
    ToOffset,
    ToTime,
)
from tandemq.console.api.responses import (
    ClientState,
    ConsumerItem,
    ConsumerPage,
    ConsumerState,
    Letter,
    LetterOutcome,
    LetterPage,
    PlannedReset,
    QueueProgress,
    ResendResult,
    ResetResult,
)
from tandemq.console.operations import consumers, dead_letters
from tandemq.console.services import AlreadyExists, NotFound
from tandemq.errors import NoRoute
from tandemq.model.message import MessageQueue

_END_MS = 1 << 52


async def list_consumer_groups(call: ApiCall, query: ListQuery) -> ConsumerPage:
    """The consumer groups by name, with their lag; up to 15 seconds old."""
    wanted = query.q.lower()
    rows = [row for row in await call.console.tables.groups() if wanted in row.name.lower()]
    found, following = part_of(rows, lambda row: row.name, query.cursor, query.limit)
    items = [
        ConsumerItem(name=row.name, lag=row.lag, lag_ms=max(0, row.lag_ms), topics=list(row.topics)) for row in found
    ]
    return ConsumerPage(items=items, next=following)


async def get_consumer_group(call: ApiCall, path: GroupPath) -> ConsumerState:
    """A consumer group: progress of each queue, clients, subscriptions."""
    console, group = call.console, path.group
    progress = await console.tables.progress(group)
    if progress is None:
        raise NotFound(f"no broker knows the group {group}")
    try:
        connections = await console.admin.connections(group)
    except NoRoute:  # no member has ever joined it
        connections = None
    return ConsumerState(
        name=group,
        lag=sum(queue_progress.lag for queue_progress in progress.values()),
        progress=[
            QueueProgress(
                topic=queue.topic,
                broker=queue.broker_name,
                queue=queue.queue_id,
                committed=queue_progress.consumer_offset,
                end=queue_progress.broker_offset,
                lag=queue_progress.lag,
                last_consumed=max(0, queue_progress.last_ms),
            )
            for queue, queue_progress in sorted(progress.items())
        ],
        lag_samples=console.tables.history.lags_of(group),
        clients=[
            ClientState(
                id=connection.client_id,
                address=connection.address,
                language=str(connection.language),
                version=str(connection.version),
            )
            for connection in (connections.connections if connections is not None else ())
        ],
        subscriptions=dict(connections.subscriptions) if connections is not None else {},
    )


async def create_consumer_group(call: ApiCall, body: NewGroup) -> ConsumerItem:
    """Create a consumer group with default settings but the number of retries."""
    if await call.console.tables.knows(body.name):
        raise AlreadyExists(f"group {body.name} exists already")
    await consumers.create_group(call.console, call.actor, body.name, body.retries)
    return ConsumerItem(name=body.name, lag=0, lag_ms=0, topics=[])


async def delete_consumer_group(call: ApiCall, path: GroupPath, query: ConfirmQuery) -> None:
    """Delete a group with its offsets, retry topic and dead letters."""
    call.require(query.confirm, path.group)
    await consumers.delete_group(call.console, call.actor, path.group)


# Offsets.


def _target(plan: ResetPlan) -> ResetTarget:
    queue = None if plan.queue is None else MessageQueue(plan.topic, plan.queue.broker, plan.queue.queue)
    to = plan.to
    if isinstance(to, ToOffset):
        return ResetTarget(offset=to.offset, queue=queue)
    if isinstance(to, ToTime):
        return ResetTarget(time_ms=to.time, queue=queue)
    return ResetTarget(time_ms=0 if isinstance(to, ToEarliest) else _END_MS, queue=queue)


def _result(plan: list[consumers.PlannedOffset]) -> ResetResult:
    return ResetResult(
        items=[
            PlannedReset(
                topic=planned.queue.topic,
                broker=planned.queue.broker_name,
                queue=planned.queue.queue_id,
                before=planned.before,
                after=planned.after,
                again=planned.again,
                skipped=planned.skipped,
            )
            for planned in plan
        ]
    )


async def preview_reset(call: ApiCall, path: GroupPath, body: ResetPlan) -> ResetResult:
    """What a reset of offsets would do; nothing is changed."""
    return _result(await consumers.plan_reset(call.console, path.group, body.topic, _target(body)))


async def reset_offsets(call: ApiCall, path: GroupPath, body: ResetOrder) -> ResetResult:
    """Move a group forward or back in a topic."""
    call.require(body.confirm, path.group)
    return _result(await consumers.reset_offsets(call.console, call.actor, path.group, body.topic, _target(body)))


# Dead letters.


async def list_dead_letters(call: ApiCall, path: GroupPath, query: LetterQuery) -> LetterPage:
    """The dead letters of a group."""
    after = dead_letters.parse_place(query.cursor) if query.cursor else None
    found: list[Letter] = []
    following: str | None = None
    try:
        async for letter in dead_letters.letters(call.console, path.group, after):
            if len(found) == query.limit:
                following = found[-1].place
                break
            message = letter.message
            found.append(
                Letter(
                    place=dead_letters.place_of(letter).text,
                    stored=message.store_ms,
                    original_topic=message.properties.get("RETRY_TOPIC", ""),
                    unique_key=message.unique_key,
                    tag=message.tags if call.sees_bodies else None,
                    keys=message.keys if call.sees_bodies else None,
                )
            )
    except NoRoute:  # it never had any
        return LetterPage(items=[], next=None)
    return LetterPage(items=found, next=following)


async def resend_dead_letters(call: ApiCall, path: GroupPath, body: ResendOrder) -> ResendResult:
    """Send dead letters to the group's retry topic again, at most 500; no other group receives them."""
    letters = body.letters
    places = letters.places if isinstance(letters, ChosenLetters) else None
    if not isinstance(letters, ChosenLetters):
        call.require(letters.confirm, path.group)
    resent = await dead_letters.resend(call.console, call.actor, path.group, places)
    return ResendResult(
        items=[
            LetterOutcome(place=dead_letters.place_of(outcome.letter).text, copy=outcome.place, why=outcome.why)
            for outcome in resent.letters
        ],
        left=resent.left,
    )
