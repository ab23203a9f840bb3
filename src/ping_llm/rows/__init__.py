"""Probe rows: the measurements of one source in time order, as one record of an ArrayRecord shard."""

#: Defaults of contexts: a row of n measurements gives ceil(n / 30) contexts per epoch, and at most 16. Both
#: numbers are defined here because `contexts` draws contexts and `rows inspect` estimates their padding.
MEASUREMENTS_PER_CONTEXT = 30
MAX_CONTEXTS_PER_ROW = 16
