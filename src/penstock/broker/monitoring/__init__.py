"""The broker's metrics, sizes, rates and log."""
