"""Readers of files, databases and the queue. Unreadable data is reported with its place, and skipped."""
