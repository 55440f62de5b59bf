"""What the benchmarks run."""
