"""Commands that administer topics, groups, offsets, messages and brokers of a running cluster."""
