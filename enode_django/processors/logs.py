"""Logging of ``runprocessors`` where the project has set up none."""

from __future__ import annotations

import logging


def log_to_console(verbosity: int) -> None:
    """Without a LOGGING setting Django shows warnings only; whoever watches processors wants to see workers come and
    go. Does nothing where handlers are set up."""
    logger = logging.getLogger("enode_django")
    if not logger.handlers and not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s")
        logger.setLevel({0: logging.WARNING, 3: logging.DEBUG}.get(verbosity, logging.INFO))
