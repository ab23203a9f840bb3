"""From probe rows to packed batches: which measurements a context states, in which order, and where."""
