"""Tests of the checks of `make chaos`."""
