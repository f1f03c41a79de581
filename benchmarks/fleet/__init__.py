"""Replicas that model an engine, the loads that are sent to them, and turns of gateways in front: benchmarks/routing.py."""
