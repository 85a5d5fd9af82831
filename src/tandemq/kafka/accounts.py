"""Users of the cluster as Kafka consumers: SASL with the mechanism PLAIN, whose password is the user's key.

Each user has its own client, which signs requests with the user's key; brokers authorize them. Connections of one user
share the client.

Source: RFC 4616; Kafka's protocol guide, "SASL authentication sequence"; docs/guides/kafka-consumers.md.
"""

from collections.abc import Callable, Sequence

from tandemq.errors import AuthenticationError
from tandemq.kafka.cluster import ClusterReader
from tandemq.model.access import Credentials

MECHANISM = "PLAIN"
USERS_MAX = 100
"""Maximum number of users that read at the same time."""


class KafkaAccounts:
    """Clients of the cluster by user."""

    def __init__(self, open_reader: Callable[[Credentials], ClusterReader]) -> None:
        """`open_reader`: makes the client of a user."""
        self._open = open_reader
        self._readers: dict[Credentials, ClusterReader] = {}
        self._uses: dict[ClusterReader, int] = {}

    async def sign_in(self, token: bytes, addresses: Sequence[str]) -> ClusterReader:
        """Return the client of a user; give it back with `leave`.

        Args:
            token: of PLAIN.
            addresses: brokers, of which one checks the user.
        Raises:
            AuthenticationError: it names no user, the brokers refuse the user, or too many users read.
            NetworkError: no broker responds.
        """
        credentials = _credentials(token)
        if credentials not in self._readers:
            await self._make_room()
        if credentials not in self._readers:  # nor meanwhile
            self._readers[credentials] = self._open(credentials)
        reader = self._readers[credentials]
        self._uses[reader] = self._uses.get(reader, 0) + 1
        try:
            await reader.check_user(addresses)
        except BaseException:
            self.leave(reader)
            raise
        return reader

    def leave(self, reader: ClusterReader) -> None:
        """Give a client back: its consumer has gone."""
        self._uses[reader] -= 1

    async def _make_room(self) -> None:
        if len(self._readers) < USERS_MAX:
            return
        unused = next((known for known in self._readers.items() if not self._uses[known[1]]), None)
        if unused is None:
            raise AuthenticationError(f"{USERS_MAX} users read already")
        credentials, reader = unused
        del self._readers[credentials], self._uses[reader]
        await reader.close()

    async def close(self) -> None:
        """Close all clients."""
        for reader in self._readers.values():
            await reader.close()


def _credentials(token: bytes) -> Credentials:
    """Return the user and key of a token: authorization identity, NUL, user, NUL, key."""
    parts = token.decode("utf-8", "replace").split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationError("the token of PLAIN names no user and password")
    return Credentials(parts[1], parts[2])
