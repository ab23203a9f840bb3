"""Downloads from RIPE Atlas: measurement results, daily dumps, and the table of probes."""
