"""An app whose projections do what a rebuild must find out."""
