"""The asyncio client: producer, consumers and administration over the machines."""
