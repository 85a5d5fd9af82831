"""What sources and jobs need of Spark: sessions, Java, workers, tasks, errors."""
