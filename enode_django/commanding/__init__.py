"""The write side's core: commands to entries, entries to the store. No threads and no sockets live here."""
