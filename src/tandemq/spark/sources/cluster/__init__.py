"""The source and sink format("rocketmq"): messages of a running cluster."""
