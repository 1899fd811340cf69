"""Commands, aggregates and events over HTTP: ``path("api/", include("enode_django.api.urls"))``.

It needs the extra ``api`` (Django REST framework). What a project can set is in ``ENODE["API"]``; see
``docs/reference/api.md``.
"""
