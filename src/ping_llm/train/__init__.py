"""Training: the `network` backend of MaxText, its runs, checkpoints and records.

`maxtext_seam` is the only module that imports MaxText. Everything else here is ours alone and could feed
another trainer.
"""
