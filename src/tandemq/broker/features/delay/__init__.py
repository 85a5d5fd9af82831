"""Delayed messages: stored in a system topic, one queue per level, and put into their topics when they are due."""
