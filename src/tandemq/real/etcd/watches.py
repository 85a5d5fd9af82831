"""One-shot watches of a connection: which paths are watched, from which revision on, and which of them fire.

    begin ── the read is sent ── changes meanwhile are remembered ── end(revision of the read) ─► armed, or fired
                                                                     armed ── a later change ─► fired

One watch stream carries all watches: it covers `directory`, their common directory, and is begun again behind the last
change that was seen when the directory grows or the stream breaks. A change that the read already contains does not
fire. Changes that etcd has deleted (compacted) before they were seen count as changes of everything.
Source: docs/internals/failover.md, "The registry".
"""

from tandemq.registry import parent_of

Key = tuple[str, bool]
"""A watched path, and whether its children are watched."""


class Watches:
    """The watches. Owner: one session, which protects them by its lock."""

    def __init__(self, revision: int) -> None:
        """Begin without watches; `revision`: of the store, before the first read of the connection."""
        self.seen = revision
        """All changes up to this revision are known."""
        self.directory: str | None = None
        """Common directory of all paths ever watched, without a slash at the end; None: none was."""
        self._armed: dict[Key, int] = {}
        """Watches by the revision after which changes count."""
        self._pending: Key | None = None
        self._changed = 0
        """Revision of the last change of the path whose read is in flight."""

    def begin(self, path: str, *, children: bool) -> bool:
        """Begin a watch whose read is about to be sent. Returns whether the stream has to cover more than before."""
        self._pending, self._changed = (path, children), 0
        before, parent = self.directory, parent_of(path)
        self.directory = parent if before is None else _common(before, parent)
        return self.directory != before

    def end(self, revision: int) -> str | None:
        """Arm the watch, as its read was answered; returns the path if it has changed since."""
        assert self._pending is not None, "begin first"
        key, self._pending = self._pending, None
        if self._changed > revision:
            self._armed.pop(key, None)
            return key[0]
        self._armed.setdefault(key, revision)
        return None

    def cancel(self) -> None:
        """Drop the watch that was begun, as its read was refused."""
        self._pending = None

    def change(self, path: str, revision: int, *, is_written: bool) -> list[str]:
        """Take a change of a node; `is_written`: it existed and exists. Returns the paths that fire, in order."""
        self.seen = max(self.seen, revision)
        changed = [(path, False)]
        if not is_written:
            changed += [(path, True), (parent_of(path), True)]
        fired = []
        for key in changed:
            if key == self._pending:
                self._changed = max(self._changed, revision)
            if self._armed.get(key, revision) < revision:
                del self._armed[key]
                fired.append(key[0])
        return fired

    def compacted(self, revision: int) -> list[str]:
        """Take that the changes before this revision are gone. Returns the paths that fire."""
        if revision <= self.seen + 1:
            return []
        self.seen = revision - 1
        self._changed = max(self._changed, self.seen)
        lost = [key for key, since in self._armed.items() if since < self.seen]
        for key in lost:
            del self._armed[key]
        return [path for path, _ in lost]


def _common(one: str, other: str) -> str:
    """Return the innermost directory that both are in, or are."""
    names = []
    for first, second in zip(one.split("/"), other.split("/"), strict=False):
        if first != second:
            break
        names.append(first)
    return "/".join(names)
