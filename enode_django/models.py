"""The tables of the app. Drivers of the event store speak SQL to them; these classes are for reading and migrating."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Cast, Now

from enode_django.fields import CurrentTransactionId, TransactionIdField


class EventStream(models.Model):
    """The effect of one command on one aggregate; a row without a version is a stored refusal.

    Rows are written by an event store's driver and never change. Saving a row again or deleting one raises TypeError.
    """

    sequence = models.BigAutoField("sequence", primary_key=True)
    aggregate_root_type = models.CharField("aggregate root type", max_length=255, db_collation="C")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    version = models.BigIntegerField("version", null=True, help_text="Empty for a stored refusal.")
    command_id = models.CharField("command id", max_length=255, db_collation="C")
    command_type = models.CharField("command type", max_length=255, db_collation="C")
    created_at = models.DateTimeField("created at")
    transaction_id = TransactionIdField("transaction id", db_default=CurrentTransactionId(), editable=False)
    events = models.BinaryField("events")
    metadata = models.BinaryField("metadata")

    class Meta:
        verbose_name = "event stream"
        verbose_name_plural = "event streams"
        default_permissions = ("view",)
        permissions = [("view_payload", "Can view the contents of event streams")]
        constraints = [
            models.UniqueConstraint(fields=["aggregate_root_id", "version"], name="enode_stream_version"),
            # The command comes first, so that a command can be found by its id alone.
            models.UniqueConstraint(fields=["command_id", "aggregate_root_id"], name="enode_stream_command"),
        ]
        indexes = [
            models.Index(
                fields=["created_at"], name="enode_stream_refused_at", condition=models.Q(version__isnull=True)
            ),
            # Costs next to nothing when rows come in; as a number, because BRIN knows no order of xid8.
            BrinIndex(
                Cast(Cast("transaction_id", models.TextField()), models.BigIntegerField()),
                name="enode_stream_position",
                autosummarize=True,
                pages_per_range=512,
            ),
        ]

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.aggregate_root_type} {self.aggregate_root_id} refused {self.command_type} {self.command_id}"
        return f"{self.aggregate_root_type} {self.aggregate_root_id} version {self.version}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError(f"event stream {self.sequence!r} is stored and cannot change; append to the event store")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError(
            f"event stream {self.sequence!r} cannot be deleted; refusals are pruned by the event store's prune_refusals"
        )


class StoreGeneration(models.Model):
    """The beginning of a generation, in which the ids of transactions count anew because the database was restored or
    moved.

    Written by an event store's driver, in the database of its streams.
    """

    generation = models.BigIntegerField("generation", primary_key=True)
    after_sequence = models.BigIntegerField(
        "after sequence", help_text="The streams that are stored later belong to it."
    )
    cluster = models.CharField("cluster", max_length=64)
    begun_at = models.DateTimeField("begun at")

    class Meta:
        verbose_name = "store generation"
        verbose_name_plural = "store generations"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"generation {self.generation} since {self.begun_at}"


class Shard(models.Model):
    """Which buckets of aggregates this database of the event store has: one row. ``number`` tells it from its siblings,
    ``epoch`` is raised whenever its buckets change.

    Written by an event store's driver, in the database of its streams.
    """

    id = models.SmallIntegerField("id", primary_key=True, default=1, editable=False)
    number = models.IntegerField("number")
    epoch = models.BigIntegerField("epoch")
    buckets = ArrayField(models.SmallIntegerField(), verbose_name="buckets")
    recorded_at = models.DateTimeField("recorded at")

    class Meta:
        verbose_name = "shard"
        verbose_name_plural = "shards"
        default_permissions = ("view",)
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="enode_shard_one_row")]

    def __str__(self) -> str:
        return f"shard {self.number} with {len(self.buckets)} buckets"


class ReadModel(models.Model):
    """The base of a `ModelProjection`'s rows: one for each aggregate. ``version`` says how far the row has come."""

    aggregate_root_id = models.CharField("aggregate root id", max_length=255, primary_key=True, db_collation="C")
    version = models.BigIntegerField("version", default=0, editable=False)

    class Meta:
        abstract = True


class Checkpoint(models.Model):
    """The version that a subscriber has reached in an aggregate. A `ModelProjection` has a checkpoint only where it has
    no row."""

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
    """Which generation of its tables a projection that was ever rebuilt has in use; without a row it is 0."""

    subscriber = models.CharField("subscriber", max_length=255, primary_key=True, db_collation="C")
    generation = models.BigIntegerField("generation")

    class Meta:
        verbose_name = "projection generation"
        verbose_name_plural = "projection generations"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.subscriber} is at generation {self.generation}"


class Rebuild(models.Model):
    """A generation of a projection's tables that is being built, or was, and the one that it ``replaces``.

    The tables of a generation that is not in use lie in a schema of their own; ``positions`` are those below which
    everything is in them. While it is being built there are none until it lacks nothing but the swap.
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
        return f"{self.subscriber}: generation {self.generation} {self.state}"


class Subscription(models.Model):
    """The place where a subscriber began in a shard of the event store, and how far it has compared that with its
    checkpoints."""

    pk = models.CompositePrimaryKey("subscriber", "shard")
    subscriber = models.CharField("subscriber", max_length=255, db_collation="C")
    shard = models.IntegerField("shard", help_text="Its number.")
    started_at = models.DateTimeField("started at")
    start_generation = models.BigIntegerField("start generation", db_default=0)
    start_position = models.BigIntegerField("start position", help_text="What is stored below it is not handled.")
    swept_generation = models.BigIntegerField("swept generation", db_default=0)
    swept_position = models.BigIntegerField("swept position", help_text="What is stored below it was compared.")
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

    class Meta:
        verbose_name = "subscription"
        verbose_name_plural = "subscriptions"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.subscriber} in shard {self.shard} since {self.started_at}"


class GenerationCheck(models.Model):
    """The comparison of one aggregate of a subscriber with the store after a generation of the store had begun.

    Where more was handled than is stored, events were handled that a failover or a restore has erased: such a row stays
    until somebody deletes it. Other rows go when all aggregates of the subscriber are compared.
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
    """A stream or refusal that a subscriber failed to handle: the aggregate waits there until it is retried or skipped.

    A refusal that waits behind it has a row, too, with no attempts; later versions are found by the checkpoint.
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
    """A refusal that a subscriber has handled, until the sweep has seen it: refusals have no version to go by."""

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


class Snapshot(models.Model):
    """The state of an aggregate at a version, so that a load need not begin with the first event.

    It may be deleted at any time. ``fingerprint`` says which code made it; other code does not use it.
    """

    aggregate_root_id = models.CharField("aggregate root id", max_length=255, primary_key=True, db_collation="C")
    aggregate_root_type = models.CharField("aggregate root type", max_length=255, db_collation="C")
    version = models.BigIntegerField("version")
    fingerprint = models.CharField("fingerprint", max_length=32, db_collation="C")
    payload = models.BinaryField("payload")
    created_at = models.DateTimeField("created at")

    class Meta:
        verbose_name = "snapshot"
        verbose_name_plural = "snapshots"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.aggregate_root_type} {self.aggregate_root_id} at version {self.version}"


class DeadLetter(models.Model):
    """A command that could not be handled, or that an exception ended while nobody waited for it, kept until it is sent
    again or discarded; or a message of the commands' topic that is no command.

    Written by the event mailboxes, in the database of its aggregate's streams. `enode_django.management.dead_letters`
    settles it.
    """

    key = models.CharField(
        "key", max_length=64, db_collation="C", help_text="Of the command, or of bytes that are none."
    )
    command_id = models.CharField("command id", max_length=255, db_collation="C", blank=True)
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C", blank=True)
    command_type = models.CharField("command type", max_length=255, db_collation="C", blank=True)
    topic = models.CharField("topic", max_length=255)
    queue = models.IntegerField("queue")
    message_offset = models.BigIntegerField("offset")
    error_type = models.CharField("error type", max_length=255)
    error = models.TextField("error", help_text="With its traceback, if it has one.")
    body = models.BinaryField("body", help_text="The message as it was sent.")
    is_answered = models.BooleanField("is answered", help_text="Its sender was told that it failed.")
    attempts = models.IntegerField("attempts", db_default=1)
    first_failed_at = models.DateTimeField("first failed at", db_default=Now())
    last_failed_at = models.DateTimeField("last failed at", db_default=Now())

    class Meta:
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
        default_permissions = ("view", "change")
        constraints = [models.UniqueConstraint(fields=["key"], name="enode_dead_letter")]
        indexes = [models.Index(fields=["last_failed_at"], name="enode_dead_letter_failed_at")]

    def __str__(self) -> str:
        return f"{self.command_type or 'message'} {self.command_id or self.key[:12]}: {self.error_type}"


class JobState(models.TextChoices):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(models.Model):
    """One run of a batch job. While it is running, its row is the lease of who works on it: ``owner``, until
    ``lease_until`` by the clock of the database.

    Rows are written by `enode_django.jobs`. They may be deleted when they have ended.
    """

    kind = models.CharField("kind", max_length=50)
    name = models.CharField("name", max_length=500, help_text="What it works on: one at a time of each kind.")
    state = models.CharField("state", max_length=20, choices=JobState.choices, default=JobState.RUNNING)
    progress = models.JSONField("progress", default=dict, encoder=DjangoJSONEncoder)
    figures = models.JSONField("figures", default=dict, encoder=DjangoJSONEncoder)
    error = models.TextField("error", default="", blank=True, help_text="With its traceback.")
    owner = models.UUIDField("owner", help_text="Of this run alone: a row that has another one was taken over.")
    lease_until = models.DateTimeField("lease until")
    cancel_requested_at = models.DateTimeField("cancel requested at", null=True, blank=True)
    task_id = models.CharField("task id", max_length=255, default="", blank=True, help_text="Celery's, if one runs it.")
    started_at = models.DateTimeField("started at")
    finished_at = models.DateTimeField("finished at", null=True, blank=True)

    class Meta:
        verbose_name = "job"
        verbose_name_plural = "jobs"
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "name"], name="enode_job_running", condition=models.Q(state=JobState.RUNNING)
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk}: {self.kind} {self.name} ({self.state})"


class ProcessorReport(models.Model):
    """The figures of one ``runprocessors`` and its workers at one moment, counted since they were started.

    Written every few seconds by their supervisor, and deleted after a while by any. ``figures`` are explained in
    ``docs/reference/metrics.md``. They only grow, but for those of the moment: what happened in between is the
    difference of two rows of one ``supervisor``, whose name is another one after each start.
    """

    supervisor = models.CharField("supervisor", max_length=255, db_collation="C")
    host = models.CharField("host", max_length=255)
    pid = models.IntegerField("process id")
    started_at = models.DateTimeField("started at")
    reported_at = models.DateTimeField("reported at", db_default=Now(), help_text="By the clock of the database.")
    ended = models.BooleanField("ended", db_default=False, help_text="The last report: it was stopped.")
    figures = models.JSONField("figures")

    class Meta:
        verbose_name = "processor report"
        verbose_name_plural = "dashboard"  # which their page in the admin is
        default_permissions = ("view",)
        indexes = [models.Index(fields=["reported_at"], name="enode_processor_reported_at")]

    def __str__(self) -> str:
        return f"{self.supervisor} at {self.reported_at}"


class Topic(models.Model):
    """A topic of the queue. It has no table: the class gives its pages in the admin a place and permissions."""

    name = models.CharField("name", max_length=255, primary_key=True)

    class Meta:
        verbose_name = "topic"
        verbose_name_plural = "topics and queues"
        default_permissions = ("view", "change")
        managed = False

    def __str__(self) -> str:
        return self.name


class Subscriber(models.Model):
    """A projection, process manager or event handler group. It has no table, as `Topic`."""

    name = models.CharField("name", max_length=255, primary_key=True)

    class Meta:
        verbose_name = "subscriber"
        verbose_name_plural = "subscribers"
        default_permissions = ("view",)
        managed = False

    def __str__(self) -> str:
        return self.name


class ReceivedCommand(models.Model):
    """A command that came through the API with an ``Idempotency-Key``, so that the key cannot be used for another."""

    command_id = models.CharField("command id", max_length=255, primary_key=True, db_collation="C")
    user = models.CharField("user", max_length=255, help_text="Who sent it: the primary key.")
    digest = models.BinaryField("digest", help_text="Of its content.")
    received_at = models.DateTimeField("received at", db_default=Now())

    class Meta:
        verbose_name = "received command"
        verbose_name_plural = "received commands"
        default_permissions = ()
        permissions = [("send_command", "Can send commands through the API")]
        indexes = [models.Index(fields=["received_at"], name="enode_received_at")]

    def __str__(self) -> str:
        return f"command {self.command_id} of user {self.user}"
