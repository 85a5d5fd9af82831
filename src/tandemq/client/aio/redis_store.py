"""Handled messages in Redis, or a server that speaks its protocol (Valkey, KeyDB, …), for consumers on many machines.

    PushConsumer(…, deduplicate=Deduplication(store=RedisStore("redis://127.0.0.1:6379/0")))

Needs the extra `redis`. Each message is one key with an expiry, "tandemq:handled:<group>:<topic>:<unique key>". Redis
may lose keys: by eviction (`maxmemory-policy`), by a restart (`appendfsync`), by a failover to a replica that lags.
Their messages may then be delivered again.
"""

from collections.abc import Collection, Sequence

from tandemq.errors import ConfigError

try:
    from redis.asyncio import Redis
except ImportError as error:  # pragma: no cover
    raise ConfigError("RedisStore needs redis-py", hint="pip install 'tandemq[redis]'") from error

KEEP_S = 7 * 24 * 3600


class RedisStore:
    """See `DuplicateStore`."""

    def __init__(self, server: str | Redis, *, keep_s: int = KEEP_S, prefix: str = "tandemq:handled:") -> None:
        """Connects with the first call.

        Args:
            server: URL: "redis://host:port/database", "rediss://…" for TLS, "unix://…"; or a client, which is closed
                with the store.
            keep_s: for how long a handled message is remembered.
            prefix: of all keys.

        Raises:
            ConfigError: the URL is invalid, or `keep_s` is below 1.
        """
        if keep_s < 1:
            raise ConfigError(f"keep_s is {keep_s}; it must be at least 1")
        try:
            self._redis = Redis.from_url(server) if isinstance(server, str) else server
        except ValueError as error:
            raise ConfigError(f"the address of Redis is invalid: {error}", hint="redis://host:6379/0") from None
        self._keep_s = keep_s
        self._prefix = prefix

    def _key(self, group: str, identity: str) -> str:
        return f"{self._prefix}{group}:{identity}"

    async def find(self, group: str, identities: Sequence[str]) -> Collection[str]:
        """See `DuplicateStore`; one round trip."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for identity in identities:
                pipeline.exists(self._key(group, identity))
            found = await pipeline.execute()
        return [identity for identity, count in zip(identities, found, strict=True) if count]

    async def add(self, group: str, identities: Sequence[str]) -> None:
        """See `DuplicateStore`; one round trip."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for identity in identities:
                pipeline.set(self._key(group, identity), b"", ex=self._keep_s)
            await pipeline.execute()

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
