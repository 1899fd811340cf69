"""The parts of ``manage.py enodedev``: processes, and one log of what they do."""
