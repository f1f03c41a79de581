"""Replicas that model an engine, the loads sent to them, and turns of gateways in front: for benchmarks/routing.py."""
