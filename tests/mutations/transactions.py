"""Mutations of transactions, with fixed roles and in groups with a registry."""

# ruff: noqa: ARG005  # a replacement has the signature of what it replaces
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from lab.sim.world.plan import has_transactions
from tandemq.broker.features.transactions import loading, op_records, processor, service
from tandemq.client.producer import transactions as client
from tandemq.model.transactions import TransactionState
from tests.mutations.patch import Mutation, both, patched

ONLY = frozenset({"I11"})


def ended_again() -> AbstractContextManager[Any]:
    """A second end commits again."""

    def current(self: service.Transactions, queue_offset: int) -> int:
        assert self.table is not None
        found = self.table.current(queue_offset)
        return queue_offset if found is None else found

    return both(
        patched(service.Transactions, "is_over", lambda self, queue_offset: False),
        patched(service.Transactions, "current", current),
    )


def rollback_commits() -> AbstractContextManager[Any]:
    """A rollback is carried out as a commit."""
    return patched(processor, "_COMMIT", processor._ROLLBACK)


def ends_unchecked() -> AbstractContextManager[Any]:
    """An end is carried out whatever group and places it names."""
    return patched(processor.TransactionProcessor, "_mismatch", lambda self, half, fields, now: None)


def checks_not_sent() -> AbstractContextManager[Any]:
    """Producers are never asked for the outcome of open transactions."""
    return patched(service.Transactions, "_ask", lambda self, copy: None)


def op_records_omitted() -> AbstractContextManager[Any]:
    """The end of every third transaction is not recorded."""
    noted = service.Transactions.note_end

    def note(self: service.Transactions, queue_offset: int, *, is_given_up: bool = False) -> None:
        noted(self, queue_offset, is_given_up=is_given_up)
        if queue_offset % 3 == 2 and queue_offset in self._unnoted:
            self._unnoted.remove(queue_offset)

    return patched(service.Transactions, "note_end", note)


def restart_forgets() -> AbstractContextManager[Any]:
    """A broker that becomes master does not read the half messages that are open."""

    def nothing(
        self: loading.TransactionLoader, halves: Any, start: int, newest: Any, *, is_ours: bool
    ) -> Iterator[None]:
        return iter(())

    return patched(loading.TransactionLoader, "_read_halves", nothing)


def restart_reopens() -> AbstractContextManager[Any]:
    """A broker that becomes master takes ended transactions for open, and does not look for their messages."""

    def unnamed(body: bytes, properties: dict[str, str]) -> op_records.OpRecord:
        found = read(body, properties)
        return found if found.is_copied else found._replace(offsets=[])

    read = op_records.read_op
    return both(
        patched(loading, "read_op", unnamed),
        patched(loading.TransactionLoader, "_find_commits", lambda self, ops, *, is_ours: iter(())),
    )


def running_is_asked() -> AbstractContextManager[Any]:
    """The client has the application asked for transactions that it is still running."""
    taken = client.TransactionCore.take_check

    def take(self: client.TransactionCore, address: str, message: Any, fields: Any, now: Any) -> None:
        ticket = self._running.pop(message.unique_key, None)
        taken(self, address, message, fields, now)
        if ticket is not None:
            self._running[message.unique_key] = ticket

    return patched(client.TransactionCore, "take_check", take)


def decision_forgotten() -> AbstractContextManager[Any]:
    """The client answers checks of what it committed with a rollback."""

    def rolled_back(self: client.TransactionCore, check: Any, decision: Any) -> TransactionState:
        return TransactionState.ROLLBACK

    return patched(client.TransactionCore, "_decided", rolled_back)


def commit_never_confirmed() -> AbstractContextManager[Any]:
    """The client does not learn that a broker has committed what it was asked for in a check, nor asks it."""

    def one_way(self: client.TransactionCore, key: str, address: str, half: Any, fields: Any, now: Any) -> None:
        command = self._end_request(fields, TransactionState.COMMIT, is_answer=True)
        self._remoting.send_oneway(address, command, now)

    return patched(client.TransactionCore, "_request_end", one_way)


TRANSACTION_SEEDS = tuple(seed for seed in range(1, 150) if has_transactions(seed))
"""Seeds in which an application sends transactions."""
TRANSACTION_MUTATIONS: dict[str, Mutation] = {
    "transaction-ended-again": Mutation(ended_again, ONLY),
    "rollback-commits": Mutation(rollback_commits, ONLY),
    "ends-unchecked": Mutation(ends_unchecked, ONLY),
    "checks-not-sent": Mutation(checks_not_sent, ONLY),
    "op-records-omitted": Mutation(op_records_omitted, ONLY),
    "restart-forgets-transactions": Mutation(restart_forgets, ONLY),
    "restart-reopens-transactions": Mutation(restart_reopens, ONLY),
    "running-transaction-is-asked": Mutation(running_is_asked, ONLY),
    "decision-forgotten": Mutation(decision_forgotten, ONLY),
    "commit-never-confirmed": Mutation(commit_never_confirmed, ONLY),
}
"""Mutations with fixed roles by name."""
TRANSACTION_GROUP_MUTATIONS: dict[str, Mutation] = {
    "new-master-forgets-transactions": Mutation(restart_forgets, ONLY),
    "new-master-reopens-transactions": Mutation(restart_reopens, ONLY),
}
"""Mutations of groups with a registry by name."""
