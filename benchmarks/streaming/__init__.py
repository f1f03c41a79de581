"""What benchmarks/streaming_lever.py is made of: a support chat's load, and the gateways before the engines."""
