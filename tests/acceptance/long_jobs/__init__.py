"""An app with a kind of jobs that last until somebody stops them."""
