"""The rules of the bank and of the notes, written a second time: a replay of stored events."""
