"""What ``manage.py enodedev`` is made of: parts in processes of their own, and one log of what they do."""
