"""Rebuilds of projections: new tables are built beside those in use, and swapped with them. Needs no Spark."""
