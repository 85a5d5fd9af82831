"""A feature for tests: it counts visits, with a request code, a table, a timer and a metric."""
