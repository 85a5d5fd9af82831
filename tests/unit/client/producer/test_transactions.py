"""Transactions of a producer, without sockets."""

import pytest

from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer import transactions
from tandemq.client.producer.transactions import TransactionCheck, TransactionTicket
from tandemq.codec.message_trace import TraceKind, decode_traces
from tandemq.codec.record.record import encode_record
from tandemq.errors import ClosedError, InvalidMessage, LocalError, OutcomeUnknown, ProtocolError, RemoteError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendResult, decode_properties, encode_properties
from tandemq.model.topic import TRACE_TOPIC
from tandemq.model.transactions import TransactionState
from tests.unit.client.world import HOST, Broker, Health, World

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
GROUP = "orders"


class Case:
    """A producer of transactions, and brokers that store half messages at queue offset 7 and log offset 4096."""

    def __init__(self, brokers: str = "a", **options: int) -> None:
        self.world = World()
        self.brokers = [self.world.broker(name) for name in brokers]
        self.world.topic("T", 1)
        self.codes = {broker.address: 0 for broker in self.brokers}
        """Code of each broker's response to END_TRANSACTION."""
        for broker in self.brokers:
            broker.handlers[Code.SEND_MESSAGE_V2] = self.store
            broker.handlers[Code.END_TRANSACTION] = lambda command, broker=broker: command.answer(  # type: ignore[misc]
                self.codes[broker.address]
            )
        self.producer = self.world.node.producer(ProducerOptions(group=GROUP, **{"retry_ms": 0, **options}))  # type: ignore[arg-type]
        self.core = self.world.node.transactions(self.producer)
        self.status = 0

    @property
    def broker(self) -> Broker:
        return self.brokers[0]

    def store(self, command: Command) -> Command:
        fields = {"msgId": f"7F00000100002A9F{4096:016X}", "queueId": command.fields["e"], "queueOffset": "7"}
        return command.answer(self.status, fields=fields)

    def begin(self, body: bytes = b"x") -> TransactionTicket:
        ticket = self.core.begin(Message("T", body), self.world.now)
        self.world.until(lambda: ticket.done)
        return ticket

    def end(self, ticket: TransactionTicket, state: TransactionState) -> Ticket[bool]:
        ended = self.core.end(ticket, state, self.world.now)
        self.world.until(lambda: ended.done)
        return ended

    def ends(self, broker: Broker | None = None) -> list[dict[str, str]]:
        return [command.fields for command in (broker or self.broker).of(Code.END_TRANSACTION)]

    def check(self, key: str, broker: Broker | None = None, group: str = GROUP, **properties: str) -> list[str]:
        """Ask for an outcome; returns the outcomes that were answered at once."""
        broker = broker or self.broker
        before = len(self.ends(broker))
        named = {"UNIQ_KEY": key, "PGROUP": group} | properties
        body = encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=9,
            log_offset=8192,
            body=b"x",
            properties=encode_properties(named).encode(),
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=HOST,
            store_ms=1,
            store_host=HOST,
            reconsume_times=0,
        )
        fields = {"tranStateTableOffset": "9", "commitLogOffset": "8192", "msgId": key, "transactionId": key}
        broker.ask(Code.CHECK_TRANSACTION_STATE, body, oneway=True, **fields)
        self.world.run(20)
        answers = self.ends(broker)[before:]
        assert all(one["fromTransactionCheck"] == "true" for one in answers)
        assert all((one["tranStateTableOffset"], one["commitLogOffset"]) == ("9", "8192") for one in answers)
        return [one["commitOrRollback"] for one in answers]


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_transaction_is_sent_as_half_message_and_ended_where_it_is_stored(state: TransactionState) -> None:
    case = Case("ab")
    ticket = case.begin()
    (sent,) = [command for broker in case.brokers for command in broker.of(Code.SEND_MESSAGE_V2)]
    properties = decode_properties(sent.fields["i"])
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", GROUP)
    assert properties["UNIQ_KEY"] == ticket.unique_key
    assert case.end(ticket, state).result() is True
    name = ticket.result().queue.broker_name
    (end,) = [fields for broker in case.brokers for fields in case.ends(broker) if broker.group.name == name]
    assert {name: end[name] for name in ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")} == {
        "tranStateTableOffset": "7",
        "commitLogOffset": "4096",
        "commitOrRollback": str(int(state)),
    }
    assert (end["producerGroup"], end["msgId"], end["fromTransactionCheck"]) == (GROUP, ticket.unique_key, "false")


def test_transaction_ends_once() -> None:
    case = Case()
    ticket = case.begin()
    case.end(ticket, COMMIT)
    with pytest.raises(LocalError, match="ended before"):
        case.core.end(ticket, ROLLBACK, case.world.now)
    with pytest.raises(LocalError, match="COMMIT or ROLLBACK"):
        case.core.end(case.begin(), UNKNOWN, case.world.now)


def test_delayed_message_is_refused_before_it_is_sent() -> None:
    case = Case()
    with pytest.raises(InvalidMessage, match="delay"):
        case.core.begin(Message("T", b"x", delay_level=1), case.world.now)
    with pytest.raises(LocalError, match="check_after_s"):
        case.core.begin(Message("T", b"x"), case.world.now, check_after_s=-1)
    assert case.broker.of(Code.SEND_MESSAGE_V2) == []


def test_immunity_is_a_property_of_the_half_message() -> None:
    case = Case()
    ticket = case.core.begin(Message("T", b"x", properties={"a": "b"}), case.world.now, check_after_s=60)
    case.world.until(lambda: ticket.done)
    (sent,) = case.broker.of(Code.SEND_MESSAGE_V2)
    properties = decode_properties(sent.fields["i"])
    assert (properties["CHECK_IMMUNITY_TIME_IN_SECONDS"], properties["a"]) == ("60", "b")


def test_half_message_that_is_stored_less_safely_is_rolled_back() -> None:
    case = Case()
    case.status = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    ticket = case.begin()
    assert isinstance(ticket.error, RemoteError)
    assert ticket.error.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert [end["commitOrRollback"] for end in case.ends()] == ["12"]
    assert case.check(ticket.unique_key) == ["12"]


def test_half_message_with_an_invalid_id_fails() -> None:
    case = Case()
    case.broker.handlers[Code.SEND_MESSAGE_V2] = lambda command: command.answer(
        0, fields={"msgId": "no id", "queueId": "0", "queueOffset": "7"}
    )
    assert isinstance(case.begin().error, ProtocolError)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY])
def test_end_is_repeated_while_no_broker_ends_transactions(code: ResponseCode) -> None:
    case = Case(retry_ms=5_000)
    ticket = case.begin()
    case.codes[case.broker.address] = int(code)
    ended = case.core.end(ticket, COMMIT, case.world.now)
    case.world.run(1_000)
    assert not ended.done
    case.codes[case.broker.address] = 0
    case.world.until(lambda: ended.done)
    assert ended.result() is True


def test_end_is_not_confirmed_when_the_time_is_over() -> None:
    case = Case(retry_ms=1_000)
    ticket = case.begin()
    case.broker.refuse()
    ended = case.core.end(ticket, COMMIT, case.world.now)
    case.world.until(lambda: ended.done)
    assert ended.result() is False


def test_end_without_a_response_is_not_repeated() -> None:
    case = Case(retry_ms=60_000)
    ticket = case.begin()
    case.broker.handlers[Code.END_TRANSACTION] = lambda _command: None
    assert case.end(ticket, COMMIT).result() is False
    case.world.run(5_000)
    assert len(case.ends()) == 1


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT])
def test_end_that_is_stored_less_safely_is_not_confirmed(code: ResponseCode) -> None:
    case = Case(retry_ms=60_000)
    ticket = case.begin()
    case.codes[case.broker.address] = int(code)
    assert case.end(ticket, COMMIT).result() is False
    assert len(case.ends()) == 1


def test_refused_end_is_an_error_and_too_late_an_end_is_not() -> None:
    case = Case()
    ticket = case.begin()
    case.codes[case.broker.address] = int(ResponseCode.SYSTEM_ERROR)
    assert isinstance(case.end(ticket, COMMIT).error, RemoteError)
    case.codes[case.broker.address] = int(ResponseCode.ILLEGAL_OPERATION)
    assert case.end(case.begin(), COMMIT).result() is False


def test_end_that_is_refused_after_an_unknown_outcome_may_have_been_made() -> None:
    """Regression: a commit that a failing broker had replicated, but not confirmed, was an error at its successor."""
    case = Case(retry_ms=5_000)
    ticket = case.begin()
    codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE]
    case.broker.handlers[Code.END_TRANSACTION] = lambda command: command.answer(codes.pop())
    assert case.end(ticket, COMMIT).result() is False
    assert codes == []


# Checks.


def test_check_of_an_unknown_transaction_asks_the_application() -> None:
    case = Case()
    case.begin()
    woken: list[None] = []
    case.core.on_check = lambda: woken.append(None)
    assert case.check("EARLIER") == []
    check = case.core.next_check()
    assert check is not None
    assert (check.message.unique_key, check.message.topic, len(woken)) == ("EARLIER", "T", 1)
    assert case.core.next_check() is None
    case.core.answer(check, COMMIT, case.world.now)
    case.world.run(20)
    (end,) = case.ends()
    assert (end["commitOrRollback"], end["fromTransactionCheck"], end["msgId"]) == ("8", "true", "EARLIER")


def test_repeated_check_asks_the_application_once() -> None:
    case = Case()
    case.begin()
    case.check("EARLIER")
    case.check("EARLIER")
    check = case.core.next_check()
    assert check is not None
    assert case.core.next_check() is None


def test_running_transaction_is_not_known_yet() -> None:
    case = Case()
    ticket = case.begin()
    assert case.check(ticket.unique_key) == ["0"]
    assert case.core.next_check() is None


def test_unconfirmed_end_is_what_a_check_is_answered() -> None:
    case = Case()
    case.broker.handlers[Code.END_TRANSACTION] = lambda _command: None
    committed, rolled_back = case.begin(), case.begin()
    case.end(committed, COMMIT)
    case.end(rolled_back, ROLLBACK)
    case.world.run(2_000)
    first = case.check(committed.unique_key, TRAN_PREPARED_QUEUE_OFFSET="7")
    assert (first, case.check(rolled_back.unique_key)) == (["8"], ["12"])


def test_other_half_message_of_a_confirmed_commit_is_rolled_back() -> None:
    case = Case("ab")
    ticket = case.begin()
    own = next(broker for broker in case.brokers if broker.group.name == ticket.result().queue.broker_name)
    other = next(broker for broker in case.brokers if broker is not own)
    sent = case.producer.send(Message("T", b"y"), case.world.now)  # so that the other one is connected
    case.world.until(lambda: sent.done and len(other.links) > 0)
    case.end(ticket, COMMIT)
    key = ticket.unique_key
    assert case.check(key, other) == ["12"]
    assert case.check(key, own, TRAN_PREPARED_QUEUE_OFFSET="8") == ["12"]
    # Its own half message is open again: the broker lost the end in a power loss.
    assert case.check(key, own, TRAN_PREPARED_QUEUE_OFFSET="7") == ["8"]
    assert case.check(key, own) == ["8"]


class TwoHalves(Case):
    """A commit that its broker `own` does not confirm, and `other`, which may hold another half message of it."""

    def __init__(self) -> None:
        super().__init__("ab")
        self.ticket = self.begin()
        name = self.ticket.result().queue.broker_name
        self.own = next(broker for broker in self.brokers if broker.group.name == name)
        self.other = next(broker for broker in self.brokers if broker is not self.own)
        sent = self.producer.send(Message("T", b"y"), self.world.now)
        self.world.until(lambda: sent.done and len(self.other.links) > 0)
        self.codes[self.own.address] = int(ResponseCode.SYSTEM_BUSY)
        self.end(self.ticket, COMMIT)

    def ask_other(self) -> list[str]:
        return self.check(self.ticket.unique_key, self.other)


def test_half_message_of_another_broker_waits_until_the_commit_is_confirmed() -> None:
    case = TwoHalves()
    responds = case.own.handlers[Code.END_TRANSACTION]
    case.own.handlers[Code.END_TRANSACTION] = lambda _command: None
    assert case.ask_other() == ["0"]
    first, repeated = case.ends(case.own)
    assert (repeated["tranStateTableOffset"], repeated["commitOrRollback"]) == ("7", "8")
    assert (first["fromTransactionCheck"], repeated["fromTransactionCheck"]) == ("false", "true")
    assert case.ask_other() == ["0"]
    assert len(case.ends(case.own)) == 2, "one request at a time"
    case.world.run(4_000)
    case.own.handlers[Code.END_TRANSACTION] = responds
    case.codes[case.own.address] = 0
    assert case.ask_other() == ["0"], "it is confirmed meanwhile"
    assert case.ask_other() == ["12"]


def test_answer_to_its_own_check_confirms_a_commit() -> None:
    case = TwoHalves()
    case.codes[case.own.address] = 0
    assert case.check(case.ticket.unique_key, case.own, TRAN_PREPARED_QUEUE_OFFSET="7") == ["8"]
    assert case.ask_other() == ["12"]


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLUSH_SLAVE_TIMEOUT])
def test_commit_that_may_still_come_is_not_made_elsewhere(code: ResponseCode) -> None:
    case = TwoHalves()
    case.codes[case.own.address] = int(code)
    assert [case.ask_other(), case.ask_other()] == [["0"], ["0"]]


def test_other_half_message_is_committed_if_the_broker_of_the_first_has_lost_it() -> None:
    case = TwoHalves()
    case.codes[case.own.address] = int(ResponseCode.SYSTEM_ERROR)
    assert [case.ask_other(), case.ask_other()] == [["0"], ["8"]]
    assert case.check(case.ticket.unique_key, case.own) == ["12"], "the other one is the one that is committed now"
    assert case.ask_other() == ["8"]


@pytest.mark.parametrize("first", [{}, {"TRAN_PREPARED_QUEUE_OFFSET": "7"}])
def test_response_to_the_answer_of_a_check_confirms_a_commit(first: dict[str, str]) -> None:
    case = Case("ab")
    ticket = case.begin()
    own = next(broker for broker in case.brokers if broker.group.name == ticket.result().queue.broker_name)
    other = next(broker for broker in case.brokers if broker is not own)
    sent = case.producer.send(Message("T", b"y"), case.world.now)
    case.world.until(lambda: sent.done and len(other.links) > 0)
    case.codes[own.address] = ResponseCode.FLUSH_DISK_TIMEOUT
    case.end(ticket, COMMIT)
    key = ticket.unique_key
    assert (case.check(key, own, **first), case.check(key, other)) == (["8"], ["0"])
    case.codes[own.address] = ResponseCode.SUCCESS
    assert (case.check(key, own, **first), case.check(key, other)) == (["8"], ["12"])
    at = first.get("TRAN_PREPARED_QUEUE_OFFSET", "9")  # the place of the copy that is committed
    assert case.check(key, own, TRAN_PREPARED_QUEUE_OFFSET="8") == ["12"]
    assert case.check(key, own, TRAN_PREPARED_QUEUE_OFFSET=at) == ["8"]


def test_half_message_with_an_unknown_outcome_is_rolled_back_when_it_is_checked() -> None:
    case = Case(retries=0)
    case.begin()
    case.broker.handlers[Code.SEND_MESSAGE_V2] = lambda _command: None
    ticket = case.begin()
    assert isinstance(ticket.error, OutcomeUnknown)
    case.world.run(2_000)
    assert case.check(ticket.unique_key) == ["12"]


def test_checks_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "CHECKS_MAX", 3)
    case = Case()
    case.begin()
    for number in range(5):
        case.check(f"K{number}")
    checks: list[TransactionCheck] = []
    while (check := case.core.next_check()) is not None:
        checks.append(check)
    assert ([check.key for check in checks], case.core.dropped) == (["K0", "K1", "K2"], 2)
    case.check("K3")
    assert case.core.next_check() is None  # the answers to the others are open
    for check in checks:
        case.core.answer(check, ROLLBACK, case.world.now)
    case.check("K4")
    assert case.core.next_check() is not None


def test_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "DECISIONS_MAX", 2)
    case = Case()
    tickets = [case.begin() for _ in range(3)]
    for ticket in tickets:
        case.end(ticket, COMMIT)
    assert [case.check(ticket.unique_key) for ticket in tickets] == [[], ["8"], ["8"]]


def test_check_that_cannot_be_read_or_is_of_another_group_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.begin()
    case.broker.ask(Code.CHECK_TRANSACTION_STATE, b"junk", oneway=True)
    case.world.run(20)
    case.check("K", group="other")
    assert case.ends() == []
    assert [record.getMessage().split(" address")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "check cannot be read",
        "check of a producer group that this client has not",
    ]


# The client.


def test_brokers_know_the_producer_before_its_first_transaction_and_after_a_restart() -> None:
    case = Case()
    introduced = case.world.node.introduce(["T"], case.world.now)
    case.world.until(lambda: introduced.done)
    assert case.broker.of(Code.HEART_BEAT)
    case.broker.refuse()
    case.world.run(1_000)
    before = len(case.broker.of(Code.HEART_BEAT))
    case.broker.recover()
    case.world.until(lambda: len(case.broker.of(Code.HEART_BEAT)) > before, within_ms=40_000)


def test_close_waits_for_the_end_in_flight_and_begins_nothing_more() -> None:
    case = Case(retry_ms=60_000)
    ticket = case.begin()
    case.codes[case.broker.address] = int(ResponseCode.SYSTEM_BUSY)
    ended = case.core.end(ticket, COMMIT, case.world.now)
    closed = case.world.node.close(case.world.now)
    case.world.until(lambda: closed.done, within_ms=5_000)
    assert ended.result() is False
    with pytest.raises(ClosedError):
        case.core.begin(Message("T", b"x"), case.world.now)


def test_silent_broker_ends_the_wait_within_the_timeout() -> None:
    case = Case(timeout_ms=1_000)
    ticket = case.begin()
    case.broker.health = Health.SILENT
    ended = case.core.end(ticket, COMMIT, case.world.now)
    assert case.world.until(lambda: ended.done) <= 1_100
    assert ended.result() is False


def test_result_is_the_place_of_the_half_message() -> None:
    half: SendResult = Case().begin().result()
    assert (half.queue.topic, half.queue.queue_id, half.queue_offset) == ("T", 0, 7)


def test_ends_and_answers_to_checks_are_traced() -> None:
    case = Case(trace=True)
    case.world.topic(TRACE_TOPIC)
    message = Message("T", b"x", tags="paid", keys=["k1"])
    tickets = [case.core.begin(message, case.world.now) for _ in range(2)]
    case.world.until(lambda: all(ticket.done for ticket in tickets))
    case.end(tickets[0], COMMIT)
    case.codes[case.broker.address] = int(ResponseCode.ILLEGAL_OPERATION)
    case.end(tickets[1], ROLLBACK)
    case.check(tickets[1].unique_key, MSG_REGION="north", KEYS="k1")
    case.world.run(1_000)
    bodies = [sent.body for sent in case.broker.of(Code.SEND_MESSAGE_V2) if sent.fields["b"] == TRACE_TOPIC]
    lines = [record for body in bodies for record in decode_traces(body.decode()).records]
    keys = [ticket.unique_key for ticket in tickets]
    assert [(record.kind, record.message_type) for record in lines[:2]] == [(TraceKind.PUB, 1), (TraceKind.PUB, 1)]
    assert [(one.message_id, one.transaction_state, one.from_check, one.region, one.tags) for one in lines[2:]] == [
        (keys[0], "COMMIT_MESSAGE", False, "DefaultRegion", "paid"),
        (keys[1], "ROLLBACK_MESSAGE", True, "north", None),
    ]
    assert all(
        (one.kind, one.topic, one.keys, one.store_host, one.message_type, one.group, one.transaction_id)
        == (TraceKind.END_TRANSACTION, "T", "k1", case.broker.address, 2, GROUP, one.message_id)
        for one in lines[2:]
    )
