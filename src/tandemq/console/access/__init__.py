"""Accounts, passwords, sessions, limits of attempts."""
