"""Questions to a trained model: exact distributions, partial addresses, inverse search, scores."""
