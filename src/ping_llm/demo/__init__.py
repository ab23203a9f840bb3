"""The demo: all steps on a simulated Internet, from simulation to queries."""
