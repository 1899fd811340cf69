"""An app that lets workers trace: each span is a line of JSON in a file."""
