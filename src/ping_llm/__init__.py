"""ping-llm learns the joint distribution of Internet latency measurements and answers questions about it."""

__version__ = "0.1.0"
