"""Readers: files, databases and the queue, as facts. What cannot be read is told with its place, and passed over."""
