"""Commands that are sent at a given time, and the deadlines of process managers."""
