"""Import the modules that workers of Spark's Python daemons need. Python imports this module at start if it finds it.

The daemons fork a worker for each step of a query. Without this each worker imports Django and the project for itself,
which takes more processor time than the rest of the tests. No thread may run when they fork, so libraries that would
start one are told not to. Workers of `test_cluster` start without it, and so do those that get the project sent and do
not find it yet.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys

SELDOM = "pyspark.sql.worker.lookup_data_sources"
"""Has one worker in a session."""

if "pyspark.daemon" in sys.orig_argv and SELDOM not in sys.orig_argv and importlib.util.find_spec("enode_django"):
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    for name in ("pandas", "pyarrow", "pyspark.worker", "enode_django.spark.executors"):
        importlib.import_module(name)
    for argument in sys.orig_argv:
        if argument.startswith("pyspark.sql.worker."):
            importlib.import_module(argument)

    from enode_django.spark.executors import set_up

    set_up()
    for name in ("rebuild_job", "sink", "snapshot_job", "source"):
        importlib.import_module(f"enode_django.spark.{name}")
    gc.freeze()
