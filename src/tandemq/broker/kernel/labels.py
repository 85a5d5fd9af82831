"""Labels that RocketMQ's dashboards expect on metrics of a store."""

LOCAL_LABELS = ("storage_type", "storage_medium")
LOCAL_DISK = ("local", "disk")
"""Values of these labels for the store's own files."""
