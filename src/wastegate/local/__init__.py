"""The engine that comes with wastegate: a step loop in a process of its own, an HTTP server before it, and
the models that it can fetch."""
