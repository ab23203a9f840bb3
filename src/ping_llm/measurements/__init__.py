"""Measurements: schema, rules, table, files, addresses, and what was known before a point in time."""
