"""Pulls: messages read for consumers, pulls held until messages arrive, lookups by key."""
