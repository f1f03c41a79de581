"""The parts of ``benchmarks/soak.py``: faulty replicas, clients that note what they see, the gateway's processes, and
what must be true at the end."""
