"""An app that only a newer deploy has installed."""
