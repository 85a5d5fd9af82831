"""The broker's tables: topics, groups, offsets, clients, damaged ranges, and how they are saved."""
