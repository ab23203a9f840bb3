"""Benchmarks, one per file; each compares its contestants in one run."""
