"""Commands for topics, groups, offsets, messages and brokers of a running cluster."""
