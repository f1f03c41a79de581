"""wastegate: what every LLM request costs, six levers that cut it, and the proof of the saving."""

__version__ = "0.1.0"
