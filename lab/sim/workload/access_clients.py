"""Clients whose users have changing rights, wrong keys, or do not exist: they send, pull, commit and ask.

Each request is signed by itself: with the present key of a user, an earlier one, none, or for other fields. What is
right is the business of `checkers.access`.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from lab.sim.checkers.access import GUARDED_GROUP, GUARDED_TOPIC, AccessChecks, GuardedRequest
from lab.sim.checkers.model import Attempt, ExpectedState
from lab.sim.workload.access_administrator import USERS
from lab.sim.workload.producer import SimProducer
from lab.sim.world.plan import CLUSTER
from lab.sim.world.world import World
from tandemq.codec.remoting.signature import signed
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

PACE_MS = (100, 500)
ASK_MS = 2_500
SUSPEND_MS = 1_200
OTHERS = 0.1
"""Share of the requests to any member of a group with a registry."""
PUB, SUB = frozenset({"Pub"}), frozenset({"Sub"})
TOPIC, GROUP = f"Topic:{GUARDED_TOPIC}", f"Group:{GUARDED_GROUP}"
Needs = tuple[tuple[str, frozenset[str]], ...]


class AccessClient(SimProducer):
    """One client, on behalf of all users."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        checks: AccessChecks,
        name: str,
        random: Random,
        master_of: Callable[[str], str],
        members: dict[str, list[str]],
    ) -> None:
        """`master_of`: returns the address of a group's master; `members`: the addresses that are asked too."""
        super().__init__(world, expected, name, random, (), pace_ms=1_000, kinds=frozenset(), binary=False)
        self._checks = checks
        self._master_of = master_of
        self._members = members
        self._ends: dict[str, int] = {}
        """End of the topic's queue at each group, as far as it is known."""

    def begin(self) -> None:
        """Begin to ask."""
        self.after(300, self._step)

    def _step(self) -> None:
        if self.is_stopped:
            return
        group = self.random.choice(sorted(self._members))
        others = self._members[group]
        address = self.random.choice(others) if self.random.random() < OTHERS else self._master_of(group)
        self.random.choice((self._send_some, self._send_some, self._pull, self._pull, self._commit, self._query))(
            group, address
        )
        self.after(self.random.randrange(*PACE_MS), self._step)

    # Signatures.

    def _ask(
        self, what: str, group: str, address: str, command: Command, needs: Needs, *, is_oneway: bool = False
    ) -> GuardedRequest:
        """Sign a request in the name of a user, and send it."""
        user = self.random.choice(USERS)
        keys = self._checks.keys.get((group, user)) or ["no key"]
        state = self._checks.state(group, user)
        draw, key = self.random.random(), state.key or keys[-1]
        if draw < 0.1:
            key = self.random.choice((*keys, "no key"))
        command.fields = signed(command.fields, command.body, Credentials(user, key))
        if draw > 0.97:
            key = ""
            del command.fields["Signature"]
        elif draw > 0.93:
            key = ""
            command.fields["x"] = "added after the signature"
        request = self._checks.sent(GuardedRequest(what, group, address, user, key, needs, self._world.now_us))
        if is_oneway:
            request.link = self.send_oneway(address, command)
        else:
            request.link = self.ask(address, command, ASK_MS, partial(self._answer, request))
        return request

    def _answer(self, request: GuardedRequest, answer: Command | None) -> None:
        if answer is None:
            return
        attempt = request.attempt
        if attempt is not None:
            self._record(attempt, answer)
        self._world.fold("guarded", request.user, request.what, answer.code)
        self._checks.answered(request, answer)
        if request.what == "pull" and answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            self._ends[request.group] = int(answer.fields["maxOffset"])

    def _record(self, attempt: Attempt, answer: Command) -> None:
        self._expected.record_response(attempt, answer.code, answer.fields, self._world.now_us)

    # Requests.

    def _send_some(self, group: str, address: str) -> None:
        messages = [self._make(GUARDED_TOPIC, plain=True) for _ in range(self.random.choice((1, 1, 1, 3)))]
        command = self._command(messages, 0, waits=True)
        is_oneway = self.random.random() < 0.15
        expected = self._expected
        attempt = Attempt(len(expected.attempts), messages, group, 0, self._world.now_us, address=address)
        attempt.waits = not is_oneway
        request = self._ask("send", group, address, command, ((TOPIC, PUB),), is_oneway=is_oneway)
        attempt.link = self.name, request.link
        request.attempt = attempt
        expected.record_attempt(attempt)

    def _pull(self, group: str, address: str) -> None:
        end = self._ends.get(group, 0)
        is_held = self.random.random() < 0.3
        fields = {
            "consumerGroup": GUARDED_GROUP,
            "topic": GUARDED_TOPIC,
            "queueId": "0",
            "queueOffset": str(end if is_held else self.random.randrange(end + 1)),
            "maxMsgNums": "4",
            "sysFlag": "6" if is_held else "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subVersion": "1",
            "expressionType": "TAG",
            "subscription": "*",
        }
        code = self.random.choice((Code.PULL_MESSAGE, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE))
        self._ask("pull", group, address, Command(code, fields=fields), ((TOPIC, SUB), (GROUP, SUB)))

    def _commit(self, group: str, address: str) -> None:
        offset = self.random.randrange(self._ends.get(group, 0) + 1)
        fields = {
            "consumerGroup": GUARDED_GROUP,
            "topic": GUARDED_TOPIC,
            "queueId": "0",
            "commitOffset": str(offset),
        }
        either = frozenset({"Sub", "Update"})
        command = Command(Code.UPDATE_CONSUMER_OFFSET, fields=fields)
        self._ask("commit", group, address, command, ((TOPIC, either), (GROUP, either))).offset = offset

    def _query(self, group: str, address: str) -> None:
        names = {"consumerGroup": GUARDED_GROUP, "topic": GUARDED_TOPIC, "queueId": "0"}
        draw = self.random.random()
        either = frozenset({"Sub", "Get"})
        if draw < 0.4:
            command = Command(Code.QUERY_CONSUMER_OFFSET, fields=names)
            self._ask("query", group, address, command, ((TOPIC, either), (GROUP, either)))
        elif draw < 0.7:
            del names["consumerGroup"]
            command = Command(Code.GET_MAX_OFFSET, fields=names)
            self._ask("end", group, address, command, ((TOPIC, frozenset({"Sub", "Get", "Pub"})),))
        elif draw < 0.85:
            command = Command(Code.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": GUARDED_GROUP})
            self._ask("members", group, address, command, ((GROUP, either),))
        else:
            body = b'{"policies":[{"policyType":"Custom","entries":[{"resource":"*","actions":["All"]}]}]}'
            command = Command(Code.AUTH_UPDATE_ACL, fields={"subject": "User:u0"}, body=body)
            self._ask("more rights", group, address, command, ((f"Cluster:{CLUSTER}", frozenset({"Update"})),))
