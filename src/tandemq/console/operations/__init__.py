"""Operations on the cluster, for pages and the JSON API alike: check, write the audit log, change."""
