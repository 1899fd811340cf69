"""The error that names the extra of the package which a module needs."""

from __future__ import annotations


def missing(extra: str, error: ImportError) -> ModuleNotFoundError:
    """Return the error to raise for a module that could not be imported and comes with an extra."""
    what = error.name or str(error)
    return ModuleNotFoundError(f'{what} is not installed; install it: pip install "enode_django[{extra}]"', name=what)
