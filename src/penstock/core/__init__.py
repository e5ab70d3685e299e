"""What everything else stands on: time, schemas, deltas, keys. Pure."""
