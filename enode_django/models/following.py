"""The tables of subscribers' progress and failures, and the base of read models."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class ReadModel(models.Model):
    """The base of a `ModelProjection`'s rows, one for each aggregate. ``version`` is that which the row has reached."""

    aggregate_root_id = models.CharField("aggregate root id", max_length=255, primary_key=True, db_collation="C")
    version = models.BigIntegerField("version", default=0, editable=False)

    class Meta:
        abstract = True


class Checkpoint(models.Model):
    """The version that a subscriber has reached in an aggregate. A `ModelProjection` has a checkpoint only for an
    aggregate without a row."""

    pk = models.CompositePrimaryKey("subscriber", "generation", "aggregate_root_id")
    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    generation = models.BigIntegerField("generation", db_default=0, help_text="Of the projection's tables.")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    version = models.BigIntegerField("version")

    class Meta:
        verbose_name = "checkpoint"
        verbose_name_plural = "checkpoints"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.subscriber} has {self.aggregate_root_id} up to version {self.version}"


class ProjectionGeneration(models.Model):
    """The generation of its tables that a projection uses. A projection that was never rebuilt has no row, and uses
    generation 0."""

    subscriber = models.CharField("subscriber", max_length=255, primary_key=True, db_collation="C")
    generation = models.BigIntegerField("generation")

    class Meta:
        verbose_name = "projection generation"
        verbose_name_plural = "projection generations"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.subscriber} has build {self.generation} in use"


class Rebuild(models.Model):
    """A generation of a projection's tables that is or was being built, and the one that it ``replaces``.

    The tables of a generation that is not in use are in a separate schema. They contain everything below
    ``positions``, and no events that were erased before the ``generations`` of the store. During the build these and
    ``corrections`` are empty until only the swap is left.
    """

    class State(models.TextChoices):
        BUILDING = "building"
        SWAPPED = "swapped"
        UNDONE = "undone"
        SETTLED = "settled", "swapped or undone, for good"
        ABANDONED = "abandoned"

    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    generation = models.BigIntegerField("generation")
    replaces = models.BigIntegerField("replaces")
    state = models.CharField("state", max_length=20, choices=State, default=State.BUILDING)
    tables = models.JSONField("tables", default=dict, help_text="What they were like when they were made.")
    migrations = models.JSONField("migrations", default=list, help_text="Those applied when it was swapped.")
    positions = models.JSONField("positions", default=dict, help_text="Up to which all is in what it replaces.")
    corrections = models.JSONField(
        "corrections", db_default={}, help_text="The number of the newest one in each shard when it began."
    )
    generations = models.JSONField(
        "generations", db_default={}, help_text="That of each shard whose erased events it does not have."
    )
    fingerprint = models.CharField(
        "fingerprint",
        max_length=100,
        null=True,
        db_collation="C",
        help_text="Of the handlers' code that made the rows.",
    )
    started_at = models.DateTimeField("started at", db_default=Now())
    swapped_at = models.DateTimeField("swapped at", null=True)

    class Meta:
        verbose_name = "rebuild"
        verbose_name_plural = "rebuilds"
        default_permissions = ("view", "change")
        constraints = [models.UniqueConstraint(fields=["subscriber", "generation"], name="enode_rebuild_generation")]

    def __str__(self) -> str:
        return f"{self.subscriber}: build {self.generation}, {self.state}"


class Subscription(models.Model):
    """The position where a subscriber began in a shard of the event store, and the position up to which it has compared
    the shard with its checkpoints."""

    pk = models.CompositePrimaryKey("subscriber", "shard")
    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    shard = models.IntegerField("shard", help_text="Its number.")
    started_at = models.DateTimeField("started at")
    start_generation = models.BigIntegerField("start generation", db_default=0)
    start_position = models.BigIntegerField("start position", help_text="What is stored below it is not handled.")
    swept_generation = models.BigIntegerField("swept generation", db_default=0)
    swept_position = models.BigIntegerField("swept position", help_text="What is stored below it was compared.")
    passed_over = models.JSONField(
        "passed over",
        db_default={},
        help_text="Types of aggregates that were unknown, and the positions from where on.",
    )
    event_types = models.JSONField(
        "event types", db_default={}, help_text="Those that its code has known, and whether it handles them."
    )
    resent_generation = models.BigIntegerField("resent generation", null=True)
    resent_position = models.BigIntegerField(
        "resent position",
        null=True,
        help_text="What follows from events below it has had an effect, or was sent again.",
    )
    fingerprint = models.CharField(
        "fingerprint",
        max_length=100,
        null=True,
        db_collation="C",
        help_text="Of the handlers' code of a projection when it began; a rebuild keeps its own.",
    )
    store_generation = models.BigIntegerField(
        "store generation", db_default=0, help_text="The newest one of the shard that the subscriber knows."
    )
    healed_generation = models.BigIntegerField(
        "healed generation", db_default=0, help_text="What was handled before it is what the shard has."
    )
    healed_id = models.CharField(
        "healed id",
        max_length=255,
        null=True,
        db_default="",
        db_collation="C",
        help_text="Up to which aggregate root id that is compared now; empty when all are.",
    )
    compared_generation = models.BigIntegerField("compared generation", db_default=0)
    compared_position = models.BigIntegerField(
        "compared position", db_default=0, help_text="Up to which versions below the swept position are compared now."
    )
    kept_since = models.DateTimeField(
        "kept since", null=True, help_text="Since when runprocessors starts although no code owns it."
    )

    class Meta:
        verbose_name = "subscription"
        verbose_name_plural = "subscriptions"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.subscriber} in shard {self.shard} since {self.started_at}"


class GenerationCheck(models.Model):
    """The comparison of one aggregate of a subscriber with the store after a new generation of the store.

    If the handled version is above the stored one, a failover or a restore has erased handled events: such a row stays
    until somebody deletes it. Other rows are deleted when all aggregates of the subscriber are compared.
    """

    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    shard = models.IntegerField("shard", help_text="Its number.")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    generation = models.BigIntegerField("generation", help_text="Of the store.")
    stored_version = models.BigIntegerField("stored version", help_text="The newest from before the generation.")
    handled_version = models.BigIntegerField("handled version")
    taken_back = models.BooleanField("taken back", help_text="Its rows are made anew from what is stored.")
    checked_at = models.DateTimeField("checked at", db_default=Now())

    class Meta:
        verbose_name = "erased event"
        verbose_name_plural = "erased events"
        default_permissions = ("view", "delete")
        constraints = [
            models.UniqueConstraint(
                fields=["subscriber", "aggregate_root_id", "generation"], name="enode_generation_check"
            ),
        ]

    def __str__(self) -> str:
        handled, stored = self.handled_version, self.stored_version
        return f"{self.subscriber} handled {self.aggregate_root_id} up to version {handled}, stored is version {stored}"


class ParkedEvent(models.Model):
    """A stream or refusal that a subscriber failed to handle. The aggregate waits until it is retried or skipped.

    A refusal that waits behind it also has a row, without attempts. Later versions are found by the checkpoint.
    """

    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    aggregate_root_type = models.CharField("aggregate root type", max_length=255, db_collation="C")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    version = models.BigIntegerField("version", null=True, help_text="Empty for a refusal.")
    command_id = models.CharField("command id", max_length=255, db_collation="C")
    error_type = models.CharField("error type", max_length=255)
    error = models.TextField("error", help_text="With its traceback.")
    attempts = models.IntegerField("attempts")
    first_failed_at = models.DateTimeField("first failed at")
    last_failed_at = models.DateTimeField("last failed at")
    next_try_at = models.DateTimeField(
        "next try at", null=True, help_text="Empty: only when somebody asks for it, or when the code has changed."
    )
    fingerprint = models.CharField(
        "fingerprint", max_length=100, db_default="", db_collation="C", help_text="Of the code that has failed."
    )

    class Meta:
        verbose_name = "parked event"
        verbose_name_plural = "parked events"
        default_permissions = ("view", "change")
        constraints = [
            models.UniqueConstraint(
                fields=["subscriber", "aggregate_root_id", "command_id"], name="enode_parked_event"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subscriber} parked {self.aggregate_root_id} at version {self.version}"


class HandledRefusal(models.Model):
    """A refusal that a subscriber has handled, because refusals have no version that a checkpoint could store. A sweep
    deletes the row when it is a day old."""

    pk = models.CompositePrimaryKey("subscriber", "aggregate_root_id", "command_id")
    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    command_id = models.CharField("command id", max_length=255, db_collation="C")
    handled_at = models.DateTimeField("handled at", db_default=Now())

    class Meta:
        verbose_name = "handled refusal"
        verbose_name_plural = "handled refusals"
        default_permissions = ()
        indexes = [models.Index(fields=["handled_at"], name="enode_refusal_handled_at")]

    def __str__(self) -> str:
        return f"{self.subscriber} has handled the refusal of {self.command_id}"


class ProcessState(models.Model):
    """The state of one process of a process manager. A row that has not started holds the events that wait for that."""

    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    key = models.CharField("key", max_length=255, db_collation="C")
    state = models.BinaryField("state", db_default=b"", help_text="Packed; empty until it has started.")
    waiting = models.JSONField("waiting events", db_default=[], help_text="Id, aggregate root id, command id of each.")
    version = models.BigIntegerField("version", db_default=0, help_text="The number of events that it has handled.")
    changed_at = models.DateTimeField("changed at", db_default=Now())
    started_at = models.DateTimeField("started at", null=True)
    ended_at = models.DateTimeField("ended at", null=True)

    class Meta:
        verbose_name = "process state"
        verbose_name_plural = "process states"
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["subscriber", "key"], name="enode_process_state")]
        indexes = [
            models.Index(fields=["ended_at"], name="enode_process_ended", condition=~models.Q(ended_at=None)),
            models.Index(fields=["changed_at"], name="enode_process_waits", condition=models.Q(started_at=None)),
        ]

    def __str__(self) -> str:
        return f"{self.subscriber}: {self.key}"
