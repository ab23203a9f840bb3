"""Evaluation of answers: metrics, tests without leakage, strong baselines, and the report."""
