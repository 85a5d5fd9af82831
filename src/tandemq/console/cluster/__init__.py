"""What pages know of the cluster."""
