"""The transactional outbox: commands written in the sender's transaction, and relayed to the queue after its commit."""
