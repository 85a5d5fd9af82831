"""Limits of users, topics and groups: requests to the masters of all broker groups.

Source: docs/reference/quotas.md.
"""

from collections.abc import Sequence

import msgspec

from tandemq.client.admin.access import each_master
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode
from tandemq.model.quota import Quota


class Exceeded(msgspec.Struct):
    """How often a rate was exceeded since it was set, or since the start of the broker."""

    kind: str
    name: str
    refused: int = 0
    slowed: int = 0


class _Answer(msgspec.Struct):
    quotas: list[Quota] = []
    exceeded: list[Exceeded] = []


def set_quotas(routes: Routes, quotas: Sequence[Quota]) -> Steps[None]:
    """Set limits; one that limits nothing is deleted. Raises as `each_master`, and ProtocolError: one is malformed."""
    for quota in quotas:
        quota.check()
    yield from each_master(routes, RequestCode.TANDEM_SET_QUOTAS, dumps({"quotas": list(quotas)}))


def quotas(routes: Routes) -> Steps[list[tuple[Quota, Exceeded]]]:
    """Return the limits as the first master has them, and how often all together exceeded each. Raises as
    `each_master`."""
    bodies = yield from each_master(routes, RequestCode.TANDEM_QUOTAS)
    answers: list[_Answer] = [decode_body(body, _Answer, "limits") for body in bodies]
    if not answers:
        raise ProtocolError("no broker has answered")
    totals: dict[tuple[str, str], Exceeded] = {}
    for answer in answers:
        for one in answer.exceeded:
            total = totals.setdefault((one.kind, one.name), Exceeded(one.kind, one.name))
            total.refused += one.refused
            total.slowed += one.slowed
    return _rows({quota.key: quota for quota in answers[0].quotas}, totals)


def _rows(
    limits: dict[tuple[str, str], Quota], totals: dict[tuple[str, str], Exceeded]
) -> list[tuple[Quota, Exceeded]]:
    """Return all limits, and those of each (`*`) once more for every name that exceeded them."""
    shared = {key: limits.get((key[0], "*")) for key in totals if key not in limits}
    listed = limits | {key: msgspec.structs.replace(quota, name=key[1]) for key, quota in shared.items() if quota}
    return [(listed[key], totals.get(key, Exceeded(*key))) for key in sorted(listed)]
