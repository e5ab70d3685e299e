"""The systems that the benchmarks and the peer tests compare with: how they are had and driven."""
