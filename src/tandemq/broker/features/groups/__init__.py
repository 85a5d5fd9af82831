"""Consumer groups: membership, offsets, queue locks, and what operators ask of their clients."""
