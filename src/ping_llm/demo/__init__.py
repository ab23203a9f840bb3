"""The demo: the whole path on a simulated Internet, from simulation to queries."""
