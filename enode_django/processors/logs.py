"""Add the command or the subscriber to log records, and set up the console of ``runprocessors``."""

from __future__ import annotations

import logging
import re
from contextlib import suppress

from enode_django.domain.metadata import known_correlation_id
from enode_django.domain.origin import handled_command
from enode_django.eventing.subscribers import running_subscriber
from enode_django.exceptions import EnodeError, printable

FIELDS = ("command_id", "aggregate_root_id", "subscriber", "correlation_id")
_NOT_INDENTED = re.compile(r"\n(?![ \t])")
FORMAT = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s%(enode)s"


class AddContext(logging.Filter):
    """A filter for handlers of log records. It lets all records through, and gives them ``command_id``,
    ``aggregate_root_id``, ``subscriber`` and ``correlation_id``, if these are known and the record does not have them
    already (``extra``).

    The values are those of the command being handled, of the running subscriber, and of the request.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        context: dict[str, str | None] = {}
        with suppress(EnodeError):  # undecodable metadata fails its command, not the log record
            context = _context()
        for name, value in context.items():
            if value and getattr(record, name, None) is None:
                setattr(record, name, value)
        return True


class AddContextText(AddContext):
    """Adds the context as `AddContext` does, and ``enode`` with all of it as one text, empty if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        super().filter(record)
        known = {name: getattr(record, name, None) for name in FIELDS}
        text = " ".join(f"{name}={_on_one_line(value)}" for name, value in known.items() if value is not None)
        record.enode = f" [{text}]" if text else ""
        return True


def _on_one_line(value: object) -> str:
    """Return a text on one line. Ids come from outside: none of them may begin a line of the log."""
    text = str(value)
    return text if text.isprintable() else repr(text)


class RecordFormatter(logging.Formatter):
    """Indents the lines of a record after the first, unless they are, and escapes unprintable characters. So an id or a
    text from outside, in a message or an exception, cannot look like another record."""

    def format(self, record: logging.LogRecord) -> str:
        return _NOT_INDENTED.sub("\n  ", printable(super().format(record), keep="\n\t"))


def _context() -> dict[str, str | None]:
    handled = handled_command.get()
    if handled is None:
        running = running_subscriber.get()
        name = None if running is None else running.name
        return {"subscriber": name, "correlation_id": known_correlation_id()}
    return {
        "command_id": handled.command_id,
        "aggregate_root_id": handled.aggregate_root_id,
        "correlation_id": handled.metadata.correlation_id,
    }


def log_to_console(verbosity: int) -> None:
    """Log to the console. Without a LOGGING setting Django shows warnings only, and workers would start and end unseen.
    Does nothing if handlers are set up."""
    logger = logging.getLogger("enode_django")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.addFilter(AddContextText())
        handler.setFormatter(RecordFormatter(FORMAT))
        logging.basicConfig(handlers=[handler])
        logger.setLevel({0: logging.WARNING, 3: logging.DEBUG}.get(verbosity, logging.INFO))
