"""Probe rows: one source's measurements in time order, as one record of an ArrayRecord shard."""
