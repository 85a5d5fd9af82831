"""Users of seeds with access control: those of the settings, and those in the table with which brokers start.

admin   the super user of the settings, as which the administrator of the users signs
inner   the user of the settings as which brokers sign to each other, unless they have a secret
app     as which clients sign that are allowed everything about topics and groups, all the time
busy    the same, with a limit of what it sends
u0 …    whose rights change, at each group by themselves: `checkers.access`
"""

from dataclasses import replace
from typing import TypeVar

from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.groups import ManagedGroup
from lab.sim.world.plan import Plan
from tandemq.broker.features.access.table import FILE
from tandemq.model.access import Credentials
from tandemq.storage.json_tables import encode_table

_SomePlan = TypeVar("_SomePlan", bound=Plan)
ADMIN = Credentials("admin", "key of the admin")
APPLICATION = Credentials("app", "key of applications")
FIRST = Credentials("u0", "first key of u0")
"""The user of the table whose rights change; the others are created."""
BUSY = Credentials("busy", "key of the busy user")
_INNER = Credentials("inner", "key of brokers")


def with_access(plan: _SomePlan, *, has_secret: bool) -> _SomePlan:
    """Return the plan with access control. `has_secret`: brokers prove a secret to each other."""
    inner = "" if has_secret else f'{{"accessKey": "{_INNER.access_key}", "secretKey": "{_INNER.secret_key}"}}'
    base = replace(
        plan.base,
        authentication_enable=True,
        authorization_enable=True,
        init_user=f'{{"username": "{ADMIN.access_key}", "password": "{ADMIN.secret_key}"}}',
        inner_credentials=inner,
    )
    return replace(plan, base=base)


def write_users(cluster: Cluster) -> None:
    """Write the table to the disks of all brokers, as an operator does before the first start.

    The same after the loss of a disk, if an operator may force that member.
    """
    entries = [{"resource": resource, "actions": ["All"], "decision": "Allow"} for resource in ("Topic:*", "Group:*")]
    users = [
        {"username": user.access_key, "password": user.secret_key, "userType": "Normal", "userStatus": "enable"}
        for user in (APPLICATION, FIRST, BUSY)
    ]
    policies = {user.access_key: [{"policyType": "Custom", "entries": entries}] for user in (APPLICATION, FIRST, BUSY)}

    def write(host: Host) -> None:
        FILE.write(host.machine.disk, encode_table({"users": users, "policies": policies}))

    def restore(host: Host) -> None:
        if isinstance(host.group, ManagedGroup):
            write(host)

    for host in cluster.hosts:
        write(host)
    cluster.on_wipe = restore
