"""Limits of users, topics and groups: kept in `quotas.json`, and copied to slaves whole after each change."""

from collections.abc import Callable, Sequence
from typing import Any

from tandemq.broker.kernel.copied_tables import Polled, StreamedTable
from tandemq.broker.state.persistence import Saver
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.bodies import convert
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError
from tandemq.model.access import RESERVED_PREFIX
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.quota import EACH, Quota
from tandemq.storage.json_tables import TableFile, require

KIND = KIND_FEATURE_TABLES + 4
QUOTAS_MAX = 20_000
_QUOTAS = "quotas"


def _check(raw: dict[str, Any]) -> None:
    require(raw, _QUOTAS)
    _parsed(raw)


FILE = TableFile("quotas.json", _check, loss="limits of users, topics and groups have their previous values")


def _parsed(raw: dict[str, Any]) -> dict[tuple[str, str], Quota]:
    quotas = convert(raw.get(_QUOTAS) or [], list[Quota], "quotas")
    for quota in quotas:
        quota.check()
    return {quota.key: quota for quota in quotas}


class QuotaTable:
    """The limits, by kind and name."""

    def __init__(self, saver: Saver) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = saver
        self.table = _parsed(FILE.load(saver.disk))
        self.changes = 0
        """Number of changes since the start."""

    def of(self, kind: str, name: str) -> Quota | None:
        """Return the limits of one, by its own or by those of each; None: it has none."""
        return self.table.get((kind, name)) or self.table.get((kind, EACH))

    def put(self, quotas: Sequence[Quota]) -> None:
        """Set limits; one that limits nothing is deleted.

        Raises:
            ProtocolError: one is malformed, or there are too many. Nothing has changed.
        """
        after = dict(self.table)
        for quota in quotas:
            quota.check()
            after.pop(quota.key, None)
            if not quota.is_unlimited:
                after[quota.key] = quota
        if len(after) > QUOTAS_MAX:
            raise ProtocolError(f"{len(after)} limits would be set, at most {QUOTAS_MAX} are allowed")
        self._replace(after)

    def take(self, raw: dict[str, Any]) -> None:
        """Apply the table of a master.

        Raises:
            ProtocolError: it is malformed.
        """
        after = _parsed(raw)
        if after != self.table:
            self._replace(after)

    def _replace(self, after: dict[tuple[str, str], Quota]) -> None:
        self.table = after
        self.changes += 1
        self._saver.later(FILE, self.as_json)

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of its file."""
        return {_QUOTAS: [self.table[key] for key in sorted(self.table)]}


class CopiedQuotaTable(StreamedTable):
    """The limits, as slaves copy them."""

    code = Code.TANDEM_QUOTAS
    is_optional = True
    kind = KIND
    is_needed = False

    def __init__(self, table: QuotaTable, counts: Callable[[], list[dict[str, Any]]]) -> None:
        """Begin to compare. `counts`: returns how often each limit was exceeded, for operators."""
        self._table = table
        self._counts = counts
        self._published = -1

    def polled(self, command: Command) -> bytes:
        """See `Table`. With `kind` and `name`: only the limits that hold for that one."""
        kind, name = command.fields.get("kind"), command.fields.get("name")
        if kind is not None and name is not None:
            quota = None if name.startswith(RESERVED_PREFIX) else self._table.of(kind, name)
            return dumps({_QUOTAS: [] if quota is None else [quota]})
        return dumps(self._table.as_json() | {"exceeded": self._counts()})

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._table.take(loads(polled.body, is_trusted=True))

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._table.changes != max(self._published, 0)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if self._table.changes == self._published:
            return None
        self._published = self._table.changes
        return self.whole()

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps(self._table.as_json())

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._table.take(table)
