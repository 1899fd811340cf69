"""An app whose commands do harm to the process that handles them."""
