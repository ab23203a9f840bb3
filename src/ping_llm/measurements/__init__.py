"""What a measurement is: schema, rules, table, files, addresses, and what was known before a moment."""
