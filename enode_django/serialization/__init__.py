"""Encoding of messages as msgpack, which is readable without their classes."""
