"""Conversion of probe rows to packed batches: selection, order and packing of measurements."""
