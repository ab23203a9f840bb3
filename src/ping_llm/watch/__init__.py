"""A stream of results against what the model expects: alarms on changes, at a stated rate of false ones."""
