"""What benchmarks/batching.py measures with."""
