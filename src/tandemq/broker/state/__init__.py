"""The broker's tables: topics, groups, offsets, clients, statistics, and how they are saved."""
