"""Measured side by side on one server: run by ``make bench``, explained in ``docs/reference/benchmarks.md``."""
