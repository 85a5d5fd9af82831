"""Real brokers, a real registry, real faults: `make chaos`. Source: docs/internals/chaos.md, "Chaos"."""
