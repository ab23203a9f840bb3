"""Downloads from RIPE Atlas: results of measurements, the daily dumps, and the probes."""
