"""`fit`: makes a model from measurements, with a report: ingest, split, train, calibrate, evaluate."""
