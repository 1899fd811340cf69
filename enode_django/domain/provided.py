"""Functions that the project provides to the domain, which imports no Django. ``enode_django.apps`` sets them.

This module imports nothing of the package, so that a process that uses no aggregate does not import the domain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enode_django.domain.reading import Reader

LabelOf = Callable[[str], str | None]
"""Maps the dotted name of a module to the label of its app."""


class Provided:
    """The functions that the project provides."""

    label_of: LabelOf = staticmethod(lambda module: None)
    make_reader: Callable[[], Reader] | None = None
    """Makes the `Reader` of stored aggregates. It is called for each reading."""


provided = Provided()
