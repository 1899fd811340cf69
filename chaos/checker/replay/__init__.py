"""The rules of the bank and of the notes, written a second time: what stored events make of them."""
