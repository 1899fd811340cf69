"""Bytes for messages and back: msgpack, readable without the classes."""
