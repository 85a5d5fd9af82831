"""Checkers of the invariants, some during a run and some at its end."""
