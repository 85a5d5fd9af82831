"""What users do to the cluster, for pages and the JSON API alike: it checks, writes the audit log, and changes."""
