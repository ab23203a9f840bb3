"""From pings to a model that can be asked, with a report: ingest, split, train, calibrate, evaluate."""
