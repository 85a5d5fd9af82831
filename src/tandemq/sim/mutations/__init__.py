"""Safeties switched off, one at a time, to show that the checkers notice."""
