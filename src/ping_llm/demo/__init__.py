"""The demo: the whole path on a simulated Internet, from nothing to an answered question."""
