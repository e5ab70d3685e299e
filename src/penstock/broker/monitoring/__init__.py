"""What the broker tells of itself: metrics, sizes and rates, its log."""
