"""Runtime support for sources and jobs: sessions, Java, clients, workers, tasks, errors."""
