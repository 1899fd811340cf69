"""The names of the Redis driver's keys. Keys of one script share a hash tag, the part in braces."""

from __future__ import annotations

from enode_django.exceptions import ConfigurationError


class Keys:
    def __init__(self, prefix: str) -> None:
        if not prefix or any(sign in prefix for sign in "{} "):
            raise ConfigurationError(f"prefix must be a plain word without braces or spaces, got {prefix!r}")
        self._prefix = prefix

        self._of_queues: dict[tuple[str, int], tuple[str, ...]] = {}

    def of_queue(self, topic: str, queue: int) -> tuple[str, ...]:
        """Return the keys of its log, itself and its times; cached, since every send needs them."""
        known = self._of_queues.get((topic, queue))
        if known is None:
            known = (self.log(topic, queue), self.queue(topic, queue), self.times(topic, queue))
            self._of_queues[topic, queue] = known
        return known

    def topics(self) -> str:
        return f"{self._prefix}:topics"

    def topic(self, topic: str) -> str:
        return f"{self._prefix}:{{{topic}}}:topic"

    def producers(self, topic: str) -> str:
        return f"{self._prefix}:{{{topic}}}:producers"

    def groups(self, topic: str) -> str:
        return f"{self._prefix}:{{{topic}}}:groups"

    def group(self, topic: str, group: str) -> str:
        return f"{self._prefix}:{{{topic}}}:group:{group}"

    def log(self, topic: str, queue: int) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:log"

    def queue(self, topic: str, queue: int) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:queue"

    def times(self, topic: str, queue: int) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:times"

    def copy(self, topic: str, queue: int) -> str:
        """Return the key of a copy of the log that is being made."""
        return f"{self._prefix}:{{{topic}:{queue}}}:copy"

    def sent(self, topic: str, queue: int, producer: str) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:sent:{producer}"

    def claim(self, topic: str, queue: int, group: str) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:claim:{group}"

    def receipts(self, topic: str, queue: int, group: str) -> str:
        return f"{self._prefix}:{{{topic}:{queue}}}:receipts:{group}"

    def inbox(self, address: str) -> str:
        return f"{self._prefix}:inbox:{{{address}}}"
