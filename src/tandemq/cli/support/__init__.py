"""Helpers of all commands: sessions, tables, types of options."""
