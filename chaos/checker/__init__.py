"""A judge of a run, apart from the code under test.

It imports nothing of the framework, of the sample or of Django. It reads the databases, the queue's files and the
clients' logs with decoders of its own, replays the stored events with rules of its own, and says which promises were
broken.
"""
