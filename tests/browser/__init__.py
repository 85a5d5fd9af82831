"""Tests of the console in a real browser, with real clusters."""
