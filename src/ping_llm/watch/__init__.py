"""Comparison of a stream of results with a model: alarms on changes, at a stated rate of false alarms."""
