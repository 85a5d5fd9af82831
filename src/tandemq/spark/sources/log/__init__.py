"""The source format("rocketmq-log"): records of commit log files."""
