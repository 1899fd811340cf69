"""An app with a read side: what the subscribers of the acceptance tests write."""
