"""Administrator of users: creates, changes and deletes them, one request at a time, as `tandemq acl` and mqadmin do.

A request without a confirmation is repeated until there is one. Before the user changes again, requests on abandoned
connections are waited for.
"""

import json
from collections.abc import Callable, Iterable
from random import Random

from lab.sim.checkers.access import (
    GUARDED_GROUP,
    GUARDED_TOPIC,
    LATE_US,
    NOBODY,
    AccessChecks,
    ExpectedEntry,
    UserState,
)
from lab.sim.workload.stepping_client import Ask, SteppingClient, Steps
from lab.sim.world.access import ADMIN
from lab.sim.world.world import World
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

USERS = ("u0", "u1", "u2")
PAUSE_MS = (200, 2_000)
ELSEWHERE = "10.200.0.0/16"
"""Where no client is."""
RESOURCES = (f"Topic:{GUARDED_TOPIC}", f"Group:{GUARDED_GROUP}", f"Topic:{GUARDED_TOPIC[:3]}*", "Topic:*", "Group:*")
ACTIONS = (("All",), ("Pub", "Sub"), ("Sub",), ("Pub",), ("Sub", "Get"))


class AccessAdministrator(SteppingClient):
    """Changes users at each group by itself; `is_stopped` ends it after the present change."""

    def __init__(
        self, world: World, checks: AccessChecks, groups: list[str], master_of: Callable[[str], str], random: Random
    ) -> None:
        """`master_of`: returns the address of a group's master at this moment."""
        super().__init__("access-admin", random, master_of)
        self._world = world
        self._checks = checks
        self._groups = sorted(groups)
        self._keys = 0
        self._calm_us: dict[tuple[str, str], int] = {}
        """Until when a user at a group is not changed."""
        self.on_sent: Callable[[str], None] = lambda _: None
        """Called with the group whose master is sent a change."""
        self.on_confirmed: Callable[[str], None] = lambda _: None
        """Called with the group whose master confirmed it."""
        self.sign_as(ADMIN)

    def work(self) -> Steps:
        """See `SteppingClient`."""
        while not self.is_stopped:
            self.is_idle = True
            yield self.random.randrange(*PAUSE_MS)
            self.is_idle = False
            group, user = self.random.choice(self._groups), self.random.choice(USERS)
            if self._world.now_us < self._calm_us.get((group, user), 0) or self.is_stopped:
                continue
            is_new = self._checks.state(group, user) == NOBODY
            yield from self._change(group, user, *self._draw(user, self._checks.state(group, user)))
            if is_new and not self.is_stopped and self._world.now_us >= self._calm_us.get((group, user), 0):
                state = self._checks.state(group, user)
                yield from self._change(group, user, *self._granted(user, state, RESOURCES[:2]))

    def _change(self, group: str, user: str, state: UserState, commands: list[Command]) -> Steps:
        """Make a change; the commands are tried in turn until one is confirmed."""
        self._checks.changing(group, user, state)
        ways: set[tuple[str, int]] = set()
        while True:
            for command in commands:
                self.on_sent(group)
                address = self._master_of(group)
                answer = yield Ask(group, Command(command.code, fields=dict(command.fields), body=command.body))
                ways.add((address, self.link))
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    lingers = len(ways) > 1
                    self._world.fold("access", group, user, str(state))
                    self._checks.confirmed(group, user, lingers=lingers)
                    self._calm_us[group, user] = self._world.now_us + LATE_US * lingers
                    self.on_confirmed(group)
                    return
                yield self.random.randrange(100, 700)

    # What changes.

    def _draw(self, user: str, state: UserState) -> tuple[UserState, list[Command]]:
        """Return another state of a user, and the requests that make it."""
        draw = self.random.random()
        if state == NOBODY:
            key = self._new_key(user)
            body = {"password": key, "userType": "Normal"}
            both = [self._of_user(Code.AUTH_CREATE_USER, user, body), self._of_user(Code.AUTH_UPDATE_USER, user, body)]
            return UserState(key), both
        if draw < 0.15:
            return NOBODY, [Command(Code.AUTH_DELETE_USER, fields={"username": user})]
        if draw < 0.3:
            key = self._new_key(user)
            return state._replace(key=key), [self._of_user(Code.AUTH_UPDATE_USER, user, {"password": key})]
        if draw < 0.45 or not state.is_enabled:
            status = {"userStatus": "disable" if state.is_enabled else "enable"}
            after = state._replace(is_enabled=not state.is_enabled)
            return after, [self._of_user(Code.AUTH_UPDATE_USER, user, status)]
        if draw < 0.6 and len(state.entries) > 1:
            resource = self.random.choice(state.entries).resource
            fields = {"subject": f"User:{user}", "resource": resource, "policyType": "Custom"}
            return state.without(resource), [Command(Code.AUTH_DELETE_ACL, fields=fields)]
        return self._granted(user, state, self.random.sample(RESOURCES, self.random.choice((1, 1, 2))))

    def _granted(self, user: str, state: UserState, resources: Iterable[str]) -> tuple[UserState, list[Command]]:
        entries = [
            ExpectedEntry(
                resource,
                self.random.choice(ACTIONS),
                self.random.random() < 0.8,
                self.random.random() < 0.07,
            )
            for resource in resources
        ]
        listed = [
            {
                "resource": entry.resource,
                "actions": list(entry.actions),
                "decision": "Allow" if entry.is_allowed else "Deny",
                "sourceIps": [ELSEWHERE] if entry.is_elsewhere else [],
            }
            for entry in entries
        ]
        body = json.dumps({"policies": [{"policyType": "Custom", "entries": listed}]}).encode()
        command = Command(Code.AUTH_UPDATE_ACL, fields={"subject": f"User:{user}"}, body=body)
        return state.with_entries(entries), [command]

    def _new_key(self, user: str) -> str:
        self._keys += 1
        return f"key {self._keys} of {user}"

    def _of_user(self, code: Code, user: str, body: dict[str, str]) -> Command:
        return Command(code, fields={"username": user}, body=json.dumps(body).encode())
