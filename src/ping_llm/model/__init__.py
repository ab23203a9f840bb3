"""Reading, exporting and running the model, from a checkpoint to logits, without MaxText."""
