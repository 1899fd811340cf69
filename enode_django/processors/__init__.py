"""The processes of ``manage.py runprocessors``: a supervisor and its workers."""
