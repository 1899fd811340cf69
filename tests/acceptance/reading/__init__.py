"""An app with a read side, written by the subscribers of the acceptance tests."""
