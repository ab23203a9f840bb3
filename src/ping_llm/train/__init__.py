"""Training: the `network` backend of MaxText, its runs, checkpoints and records.

`maxtext_seam` is the only module that imports MaxText. Everything else here is independent of it and could
be used with another trainer.
"""
