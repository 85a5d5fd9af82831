"""Replies to requests of producers."""
