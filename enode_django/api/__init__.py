"""Commands, aggregates and events over HTTP: ``path("api/", include("enode_django.api.urls"))``.

It needs the extra ``api`` (Django REST framework). ``ENODE["API"]`` has its settings; see ``docs/reference/api.md``.
"""
