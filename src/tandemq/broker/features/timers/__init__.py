"""Timed messages: those that wait, their delivery, recall, and the files that Java brokers read."""
