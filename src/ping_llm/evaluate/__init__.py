"""How good is an answer? Metrics, splits without leakage, strong baselines, and the report."""
