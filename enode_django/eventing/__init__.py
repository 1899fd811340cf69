"""The delivery of stored event streams to subscribers."""
