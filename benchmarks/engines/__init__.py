"""What the benchmark of the local engine needs: its rivals, their checkpoint, a raw step loop, and streams to load
them with."""
