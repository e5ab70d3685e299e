"""Spark: its Java, its session, and the host that runs a pipeline's lanes in its tasks."""
