"""The commit log: segmented files, appends, reads, scans, epochs."""
