"""The engine: plans batches, runs them on Spark or in this process, and commits what they made."""
