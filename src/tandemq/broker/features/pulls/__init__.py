"""Pulls: messages read for consumers, and pulls held until messages arrive."""
