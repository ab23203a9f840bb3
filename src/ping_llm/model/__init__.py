"""A checkpoint becomes logits: reading, exporting and running the model, without MaxText."""
