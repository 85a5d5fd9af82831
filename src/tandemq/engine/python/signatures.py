"""Users whose signed requests the engine takes."""


class SigningUser:
    """The user of a connection: what its requests are checked with, as `codec.remoting.signature` does it."""

    __slots__ = ("access_key", "pops", "pulls", "topics")

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        topics: set[str] | None,
        pops: set[tuple[str, str]] | None,
        pulls: set[tuple[str, str]] | None,
    ) -> None:
        """Prepare the key.

        Args:
            access_key: name of the user.
            secret_key: key of its signatures.
            topics: topics that it may send to; the owner may change the set. None: all.
            pops: groups and topics whose popped messages it may acknowledge; likewise.
            pulls: groups and topics that it may pull; likewise.
        """
        self.access_key = access_key
        self.topics = topics
        self.pops = pops
        self.pulls = pulls
