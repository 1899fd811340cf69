"""The parts of ``manage.py enodedev``: processes, and their common log."""
