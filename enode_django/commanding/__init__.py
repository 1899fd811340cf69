"""The core of the write side: commands become decisions, which are stored and published. Starts no threads."""
