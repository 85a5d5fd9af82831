"""The token of a request, and the cluster."""

from tandemq.console.api.operation import ApiCall
from tandemq.console.api.responses import ClusterState, RunningGroup, RunningMember, TokenInfo
from tandemq.console.api.types import Level
from tandemq.console.cluster.picture import GroupView, MemberView
from tandemq.console.web.translation import say


async def get_token(call: ApiCall) -> TokenInfo:
    """The token of the request: its user, its role, and when it expires."""
    token = call.holder.token
    return TokenInfo(
        user=token.user,
        name=token.name,
        number=token.number,
        role=call.holder.role.text,
        created=token.created_ms,
        expires=token.expires_ms,
    )


async def get_cluster(call: ApiCall) -> ClusterState:
    """The state of the cluster: whether all is well, and each broker group with its members."""
    view = await call.console.watch.view()
    return ClusterState(
        at=view.at_ms,
        level=level_of(view.level),
        sentences=[say("en", sentence) for sentence in view.sentences],
        groups=[running_group(group) for group in view.groups],
    )


def level_of(text: str) -> Level:
    """Return a level as the API names it."""
    return "ok" if text == "ok" else "warning" if text == "warning" else "bad"


def running_group(group: GroupView) -> RunningGroup:
    """Return a group of the picture."""
    return RunningGroup(
        name=group.name,
        cluster=group.cluster,
        mode=group.mode,
        epoch=group.epoch,
        level=level_of(group.level),
        problems=[say("en", problem) for problem in group.problems],
        since=group.since_ms,
        members=[_member(member) for member in group.members],
    )


def _member(member: MemberView) -> RunningMember:
    return RunningMember(
        id=member.broker_id,
        address=member.address,
        is_master=member.is_master,
        answers=member.answers,
        in_sync=member.in_sync,
        may_read=member.may_read,
        may_write=member.may_write,
        stage=member.stage,
        why=member.why,
        lag_bytes=member.lag_bytes,
        lag_ms=member.lag_ms,
        log_end=member.log_end,
        puts_per_s=member.rates.puts if member.rates is not None else None,
        gets_per_s=member.rates.gets if member.rates is not None else None,
        disk_used=member.disk,
        version=member.version,
    )
