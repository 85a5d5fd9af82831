"""Source and sink `format("rocketmq")`: messages of a running cluster."""
