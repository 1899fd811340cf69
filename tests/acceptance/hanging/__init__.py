"""An app with a handler of events that may never return."""
