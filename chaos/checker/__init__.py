"""A checker of runs that is independent of the code under test.

It imports nothing of the framework, the sample or Django. It reads the databases, the queue's files and the clients'
logs with its own decoders, replays the stored events with its own rules, and reports the broken promises.
"""
