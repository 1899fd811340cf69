"""Batch jobs over the event store on Apache Spark. Code that runs without PySpark does not import this package."""

from __future__ import annotations

from enode_django.exceptions import SparkUnavailable

NEEDED = (4, 3)
INSTALL = 'pip install "enode_django[spark]"'

try:
    import pandas  # noqa: F401  PySpark asks for it when it is used
    import pyarrow  # noqa: F401
    import pyspark
except ImportError as error:
    raise SparkUnavailable(f"{error.name or error} is not installed; install what Spark needs: {INSTALL}") from error

if tuple(map(int, pyspark.__version__.split(".")[:2])) < NEEDED:
    raise SparkUnavailable(f"PySpark {pyspark.__version__} is too old; install 4.3 or newer: {INSTALL}")
