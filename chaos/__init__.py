"""Real brokers, a real registry, real faults: `make chaos`. Source: docs/testing.md, "Chaos"."""
