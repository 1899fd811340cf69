"""Rebuilding a projection beside the one in use, and putting it in its place. Needs no Spark."""
