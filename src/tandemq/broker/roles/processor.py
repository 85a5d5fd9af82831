"""Requests of operators and other members to a broker whose group has a registry.

    TANDEM_FAILOVER_STATUS   {}                 status, and the timeline of role changes
    TANDEM_SWITCH            target, why        sent to the master; answered when it is done, or was given up
    TANDEM_FORCE_MASTER      preview            sent to the broker that is to serve; answered likewise
    TANDEM_HAND_OFFSETS      from, token, body  sent by a member that hands over; answered when it is saved

Source: docs/reference/requests.md, "groups with a registry".
"""

from dataclasses import fields
from enum import Enum
from typing import Any

import msgspec

from tandemq import __version__
from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.roles.registry_role import RegistryRole, RegistryRoleOf
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.requests import read_fields
from tandemq.coordination.member.orders import CommandResult, Status
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief

NO_REGISTRY = "this broker's role is fixed by its settings: its group has no registry"


class SwitchFields(msgspec.Struct):
    """TANDEM_SWITCH: the broker id of the next master, and who orders it, for the record."""

    target: int
    why: str = "by an operator"


class ForceFields(msgspec.Struct):
    """TANDEM_FORCE_MASTER: whether only to report what may be lost or delivered twice."""

    preview: bool = False


class HandFields(msgspec.Struct, rename={"giver": "from"}):
    """TANDEM_HAND_OFFSETS: the broker id that hands over, and the version of the record it belongs to."""

    giver: int
    token: int


class FailoverProcessor(Feature):
    """Status, commands and handed offsets."""

    def __init__(self, kernel: Kernel, role: RegistryRoleOf) -> None:
        """`role` returns the role, if a registry decides it."""
        self._role = role
        self._turn = kernel.turn
        self._current = kernel.current
        self._offsets = kernel.offsets
        self._topics = kernel.topics

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.TANDEM_FAILOVER_STATUS: Request(self._on_status),
            Code.TANDEM_SWITCH: Request(self._on_switch),
            Code.TANDEM_FORCE_MASTER: Request(self._on_force_master),
            Code.TANDEM_HAND_OFFSETS: Request(self._on_offsets, is_of_member=True),
        }

    def _on_status(self, _link: Link, command: Command, now: Now) -> Command | None:
        config, role = self._current.config, self._role()
        table: dict[str, Any] = {
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "version": __version__,
            "isOpen": config.is_open,
            "hasOpenMetrics": config.has_open_metrics,
            "shardOf": config.shard_of,
            "shardRolesTogether": config.shard_roles_together,
        }
        if role is not None:
            table |= _status_table(role.member.status(now), now) | {
                "isMaster": role.is_master,
                "warning": role.warning,
                "timeline": role.timeline,
                "members": _members(role, now),
                "registryAddress": str(role.registry.address),
            }
        else:
            table |= {"mode": "static", "isMaster": self._turn.serving.is_master}
        return command.answer(ResponseCode.SUCCESS, body=dumps(table))

    def _on_switch(self, link: Link, command: Command, now: Now) -> Command | None:
        fields, role = read_fields(SwitchFields, command.fields), self._role()
        if role is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=NO_REGISTRY)
        return _decided(role, link, command, role.member.switch(fields.target, now, why=brief(fields.why)))

    def _on_force_master(self, link: Link, command: Command, now: Now) -> Command | None:
        fields, role = read_fields(ForceFields, command.fields), self._role()
        if role is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=NO_REGISTRY)
        verdict = role.member.force_master(now, is_preview=fields.preview)
        return _decided(role, link, command, verdict._replace(is_done=True) if fields.preview else verdict)

    def _on_offsets(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(HandFields, command.fields)
        role, table = self._role(), loads(command.body)
        if not isinstance(table, dict):
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="the body is not a table of offsets")
        try:
            if role is not None:
                refusal = role.take_offsets(fields.giver, fields.token, table)
            else:
                refusal = self._take_from_slave(table)
        except StoreDamaged as error:
            raise ProtocolError(str(error)) from error
        if refusal is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=refusal)
        return command.answer(ResponseCode.SUCCESS)

    def _take_from_slave(self, table: dict[str, Any]) -> str | None:
        """Merge what consumers committed at a slave while this master was down; return why not."""
        if not self._turn.serving.is_master:
            return "this broker is a slave"
        self._offsets.merge_ahead(table.get("offsets") or {}, self._topics.end_of)
        self._offsets.save(is_awaited=True)
        return None


def _decided(role: RegistryRole, link: Link, command: Command, verdict: CommandResult) -> Command | None:
    """Answer a command whose outcome is known; None if the response comes later."""
    if not verdict.is_accepted or verdict.is_done:
        code = ResponseCode.SUCCESS if verdict.is_accepted else ResponseCode.SYSTEM_ERROR
        return command.answer(code, remark=verdict.text)
    role.commands.append((link.number, command))
    return None


def _members(role: RegistryRole, now: Now) -> list[dict[str, Any]]:
    """Return the configured members: addresses of those that live, and how far behind they are if we are the master."""
    member, found = role.member, []
    for configured in member.view.config.members if member.view.config is not None else ():
        record = (member.view.live or {}).get(configured.broker_id)
        row: dict[str, Any] = {
            "brokerId": configured.broker_id,
            "role": configured.role.value,
            "permission": configured.permission.value,
            "weight": configured.weight,
            "priority": configured.priority,
            "address": "" if record is None else record.address,
            "lagBytes": None,
            "lagMs": None,
        }
        peer = member.peer(configured.broker_id)
        if role.is_master and configured.broker_id != member.id and peer.is_linked and peer.acked >= 0:
            lag = max(0, member.log_end - peer.acked)
            row |= {"lagBytes": lag, "lagMs": min(now.mono_ms - peer.caught_up_ms, now.mono_ms) if lag else 0}
        found.append(row)
    return found


def _status_table(status: Status, now: Now) -> dict[str, Any]:
    """Return a status with JSON names; times are calendar ms."""
    table: dict[str, Any] = {}
    for item in fields(Status):
        head, *rest = item.name.split("_")
        value = getattr(status, item.name)
        table[head + "".join(map(str.capitalize, rest))] = value.value if isinstance(value, Enum) else value
    table["sinceMs"] = now.wall_ms - now.mono_ms + status.since_ms
    return table
