"""What several benchmarks share: brokers, the sides of a comparison, load tools, events."""
