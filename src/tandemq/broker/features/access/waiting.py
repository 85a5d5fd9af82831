"""Connections on which users' requests may wait for messages, so that a change of rights ends them."""

from collections.abc import Iterable
from itertools import islice


class Waiting:
    """Connections by user, and those whose waiting requests are to end."""

    def __init__(self) -> None:
        """Begin without any."""
        self._links: dict[str, set[int]] = {}
        self._users: dict[int, set[str]] = {}
        self.ended: dict[int, None] = {}
        """Connections whose waiting requests are to end, in this order."""

    def add(self, link: int, user: str) -> None:
        """Note that a request of a user waits on a connection, perhaps."""
        users = self._users.get(link)
        if users is None:
            users = self._users[link] = set()
        if user not in users:
            users.add(user)
            self._links.setdefault(user, set()).add(link)

    def end(self, users: Iterable[str]) -> None:
        """Have the requests of some users end."""
        for user in users:
            self.ended.update(dict.fromkeys(sorted(self._links.get(user, ()))))

    def end_all(self, links: Iterable[int]) -> None:
        """Have all requests on some connections end, also those without a user."""
        self.ended.update(dict.fromkeys(links))

    def take_ended(self, limit: int) -> list[int]:
        """Return connections whose waiting requests end now, up to a limit."""
        links = list(islice(self.ended, limit))
        for link in links:
            self.forget(link)
        return links

    def forget(self, link: int) -> None:
        """Forget a connection."""
        self.ended.pop(link, None)
        for user in self._users.pop(link, ()):
            links = self._links[user]
            links.discard(link)
            if not links:
                del self._links[user]
