"""Benchmarks: one file each, each comparing in one run."""
