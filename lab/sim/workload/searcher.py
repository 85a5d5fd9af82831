"""Client that looks for messages, as operators do: by key, by log offset, by time, and statistics of queues.

A broker reads records for these requests, and what the page cache lacks is read from the device meanwhile. So a request
may wait for a device that hangs, for a master that changes, or for a topic that is deleted. Whether a message is found
is not checked: it may be gone by right. What is found has to be what was sent.
"""

from random import Random

from lab.sim.checkers.model import Attempt, ExpectedState
from lab.sim.workload.limited_clients import MasterOf, messages_in
from lab.sim.workload.stepping_client import Ask, SteppingClient, Steps
from lab.sim.world.world import Violation, World
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY

SHARE = 0.5
"""Share of the seeds in which it runs."""
PAUSE_MS = (100, 2_500)
BURSTS = (1, 1, 4)
RECENT = 64
"""Number of the newest send requests, for whose messages it looks mostly."""


class Searcher(SteppingClient):
    """Looks for messages until the end of the run."""

    def __init__(self, world: World, expected: ExpectedState, random: Random, master_of: MasterOf) -> None:
        """Look for the messages in `expected`."""
        super().__init__("searcher", random, master_of)
        self._world = world
        self._expected = expected

    def work(self) -> Steps:
        """See `SteppingClient`."""
        while True:
            yield self.random.randrange(*PAUSE_MS)
            for _ in range(self.random.choice(BURSTS)):
                attempt = self._chosen()
                if attempt is None:
                    break
                command = self._request(attempt)
                answer = yield Ask(attempt.group, command)
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    self._world.fold("found", command.code, str(sorted(answer.fields.items())), len(answer.body))
                    self._check(command, answer)

    def _chosen(self) -> Attempt | None:
        attempts = self._expected.attempts
        known = attempts if self.random.random() < 0.3 else attempts[-RECENT:]
        stored = [attempt for attempt in known if attempt.is_stored]
        return self.random.choice(stored) if stored else None

    def _request(self, attempt: Attempt) -> Command:
        message = self.random.choice(attempt.messages)
        kind = self.random.randrange(5)
        if kind == 0 and attempt.log_offsets:
            return Command(Code.VIEW_MESSAGE_BY_ID, fields={"offset": str(self.random.choice(attempt.log_offsets))})
        if kind == 1:
            fields = {
                "topic": message.topic,
                "queueId": str(attempt.queue_id),
                "timestamp": str(self.now.wall_ms - 5_000),
            }
            return Command(Code.SEARCH_OFFSET_BY_TIMESTAMP, fields=fields)
        if kind == 2:
            return Command(Code.GET_TOPIC_STATS_INFO, fields={"topic": message.topic})
        times = {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        return Command(Code.QUERY_MESSAGE, fields={"topic": message.topic, "key": message.key, "maxNum": "32", **times})

    def _check(self, command: Command, answer: Command) -> None:
        if command.code not in (Code.VIEW_MESSAGE_BY_ID, Code.QUERY_MESSAGE):
            return
        for found in messages_in(answer.body):
            key = found.properties.get(UNIQ_KEY, "")
            sent = self._expected.messages.get(key)
            if sent is not None and found.body != sent.body:
                raise Violation("I2", f"{self.name} found {key} with another body at log offset {found.log_offset}")
            wanted = command.fields.get("offset")
            if wanted is not None and found.log_offset != int(wanted):
                raise Violation("I2", f"{self.name} asked for log offset {wanted} and got {found.log_offset}")
