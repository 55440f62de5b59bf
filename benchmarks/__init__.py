"""The figures of docs/benchmarks.md, each measured by one module of this package beside a peer in the same run; see README.md."""
