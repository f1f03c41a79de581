"""Engines, traffic and counters for the benchmark that reconciles them with the ledger."""
