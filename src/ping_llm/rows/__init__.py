"""Probe rows: one source's measurements in time order, as one record of an ArrayRecord shard."""

#: A row of n measurements gives ceil(n / 30) contexts per epoch by default, and at most 16. `contexts` draws
#: them and `rows inspect` estimates their padding, so both numbers stand here, above both.
MEASUREMENTS_PER_CONTEXT = 30
MAX_CONTEXTS_PER_ROW = 16
