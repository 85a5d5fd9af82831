"""Tests of SQL92 filters."""
