"""What operators and other members ask a broker whose group has a registry.

    TANDEM_FAILOVER_STATUS   {}                 everything that is known, and the timeline of role changes
    TANDEM_SWITCH            target             asked of the master; answered when it is done, or was given up
    TANDEM_FORCE_MASTER      preview            asked of the broker that is to serve; answered in the same way
    TANDEM_HAND_OFFSETS      from, token, body  asked by a member that hands over; answered when it is saved

Source: docs/reference/requests.md, "groups with a registry".
"""

from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.requests import read_fields
from tandemq.coordination.member.orders import CommandResult, Status
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

if TYPE_CHECKING:
    from tandemq.broker.context import Handler
    from tandemq.broker.failover.service import Failover
    from tandemq.broker.node import Broker

NO_REGISTRY = "this broker's role is fixed by its settings: its group has no registry"


class SwitchFields(msgspec.Struct):
    """TANDEM_SWITCH: the member that is to be the master."""

    target: int


class ForceFields(msgspec.Struct):
    """TANDEM_FORCE_MASTER: whether only to say what it may lose or repeat."""

    preview: bool = False


class HandFields(msgspec.Struct, rename={"giver": "from"}):
    """TANDEM_HAND_OFFSETS: who hands over, and the version of the record it belongs to."""

    giver: int
    token: int


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _GroupCalls(broker)
    return {
        Code.TANDEM_FAILOVER_STATUS: on.status,
        Code.TANDEM_SWITCH: on.switch,
        Code.TANDEM_FORCE_MASTER: on.force_master,
        Code.TANDEM_HAND_OFFSETS: on.take_offsets,
    }


class _GroupCalls:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def status(self, _link: Link, command: Command, now: Now) -> Command | None:
        broker, failover = self._broker, self._broker.failover
        table: dict[str, Any] = {"brokerName": broker.config.broker_name, "brokerId": broker.config.broker_id}
        if failover is None:
            table |= {"mode": "static", "isMaster": broker.is_master}
        else:
            table |= _status_table(failover.member.status(now), now) | {
                "isMaster": failover.is_master,
                "timeline": failover.timeline,
                "members": _members(failover, now),
                "registryAddress": f"{failover.registry.address.kind}://{failover.registry.address.hosts}",
            }
        return command.answer(ResponseCode.SUCCESS, body=dumps(table))

    def switch(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(SwitchFields, command.fields)
        failover = self._broker.failover
        if failover is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=NO_REGISTRY)
        return self._decided(link, command, failover.member.switch(fields.target, now))

    def force_master(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ForceFields, command.fields)
        failover = self._broker.failover
        if failover is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=NO_REGISTRY)
        verdict = failover.member.force_master(now, is_preview=fields.preview)
        return self._decided(link, command, verdict._replace(is_done=True) if fields.preview else verdict)

    def _decided(self, link: Link, command: Command, verdict: CommandResult) -> Command | None:
        if not verdict.is_accepted or verdict.is_done:
            code = ResponseCode.SUCCESS if verdict.is_accepted else ResponseCode.SYSTEM_ERROR
            return command.answer(code, remark=verdict.text)
        assert self._broker.failover is not None, "it gave the verdict"
        self._broker.failover.commands.append((link.number, command))
        return None

    def take_offsets(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(HandFields, command.fields)
        failover, table = self._broker.failover, loads(command.body)
        if failover is None or not isinstance(table, dict):
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=NO_REGISTRY if failover is None else "no table")
        try:
            refusal = failover.take_offsets(fields.giver, fields.token, table)
        except StoreDamaged as error:
            raise ProtocolError(str(error)) from error
        if refusal is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=refusal)
        return command.answer(ResponseCode.SUCCESS)


def _members(failover: "Failover", now: Now) -> list[dict[str, Any]]:
    """The configured members: their addresses if they live, and how far behind they are if we are their master."""
    member, found = failover.member, []
    for one in member.view.config.members if member.view.config is not None else ():
        record = (member.view.live or {}).get(one.broker_id)
        row: dict[str, Any] = {
            "brokerId": one.broker_id,
            "role": one.role.value,
            "permission": one.permission.value,
            "weight": one.weight,
            "priority": one.priority,
            "address": "" if record is None else record.address,
            "lagBytes": None,
            "lagMs": None,
        }
        peer = member.peer(one.broker_id)
        if failover.is_master and one.broker_id != member.id and peer.is_linked and peer.acked >= 0:
            lag = max(0, member.log_end - peer.acked)
            row |= {"lagBytes": lag, "lagMs": min(now.mono_ms - peer.caught_up_ms, now.mono_ms) if lag else 0}
        found.append(row)
    return found


def _status_table(status: Status, now: Now) -> dict[str, Any]:
    """A status under names as JSON has them; times are calendar ones."""
    table: dict[str, Any] = {}
    for item in fields(Status):
        head, *rest = item.name.split("_")
        value = getattr(status, item.name)
        table[head + "".join(map(str.capitalize, rest))] = value.value if isinstance(value, Enum) else value
    table["sinceMs"] = now.wall_ms - now.mono_ms + status.since_ms
    return table
