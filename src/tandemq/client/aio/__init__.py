"""The asyncio client: producer, consumers and administration."""
