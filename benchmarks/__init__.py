"""Benchmarks, run side by side on one server by ``make bench``. ``docs/reference/benchmarks.md`` explains them."""
