"""An app with which bank accounts get a snapshot every few versions."""
