"""The tables of the event store and of the command side."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Cast, Now

from enode_django.fields import CurrentTransactionId, TransactionIdField
from enode_django.models.append_only import AppendOnly


class EventStream(AppendOnly):
    """The effect of one command on one aggregate. A row without a version is a stored refusal.

    The event store's driver writes the rows; they never change. The driver deletes refusals only.
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
            # The command id comes first, so that a command can be found by its id alone.
            models.UniqueConstraint(fields=["command_id", "aggregate_root_id"], name="enode_stream_command"),
        ]
        indexes = [
            models.Index(
                fields=["created_at"], name="enode_stream_refused_at", condition=models.Q(version__isnull=True)
            ),
            # Costs almost nothing per insert. Cast to a number, because BRIN has no order for xid8.
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


class EventCorrection(AppendOnly):
    """A correction of the events of one stored stream. Readers get it instead of the stream, which stays unchanged. The
    correction with the highest id applies; without ``events`` the original applies again.

    The event store's driver writes it to the database of its streams. Rows never change, and are never deleted.
    """

    id = models.BigAutoField("number", primary_key=True)
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    version = models.BigIntegerField("version")
    events = models.BinaryField("events", null=True, help_text="Empty: the original counts again.")
    corrected_by = models.CharField("corrected by", max_length=255)
    reason = models.TextField("reason")
    corrected_at = models.DateTimeField("corrected at", db_default=Now())

    class Meta:
        verbose_name = "event correction"
        verbose_name_plural = "event corrections"
        default_permissions = ("view", "add")
        indexes = [models.Index(fields=["aggregate_root_id", "version", "-id"], name="enode_correction_stream")]

    def __str__(self) -> str:
        return f"correction {self.pk} of {self.aggregate_root_id} version {self.version}"


class StoreGeneration(AppendOnly):
    """The beginning of a generation, in which transaction ids start again because the database was restored or moved.

    The event store's driver writes it to the database of its streams.
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
    """The buckets of aggregates that this database of the event store owns, in one row. ``number`` is the shard's,
    ``epoch`` is raised whenever its buckets change.

    The event store's driver writes it to the database of its streams.
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


class Snapshot(models.Model):
    """The state of an aggregate at a version, so that a load need not begin with the first event.

    It may be deleted at any time. ``fingerprint`` identifies the code that made it; other code does not use it.
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
    """A command that could not be handled, or that an exception ended while nobody waited for it; or a message of the
    command topic that is not a command. It is kept until it is sent again or discarded.

    Event mailboxes write it to the database of its aggregate's streams; `enode_django.operating.dead_letters` settles
    it.
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


class UniqueValue(models.Model):
    """A value that must be unique, the aggregate that has claimed it, and the commands under way that may change that.

    Command mailboxes write it to the first database of the event store, `enode_django.commanding.uniqueness` settles
    it. The value is a digest.
    """

    id = models.BigAutoField("id", primary_key=True)
    name = models.CharField("name", max_length=500, db_collation="C", help_text="Of what must be unique.")
    digest = models.BinaryField("digest", help_text="SHA-256 of the value, normalised.")
    aggregate_root_id = models.CharField("aggregate root id", max_length=255, db_collation="C")
    claims = models.JSONField("claims", help_text="Commands under way that set the value, with their types.")
    releases = ArrayField(
        models.BigIntegerField(), verbose_name="releases", help_text="Versions of the aggregate that may give it up."
    )
    version = models.BigIntegerField("version", help_text="At which it was confirmed last; 0: not yet.")
    changed_at = models.DateTimeField("claimed or released at")
    revision = models.BigIntegerField("revision")

    class Meta:
        verbose_name = "unique value"
        verbose_name_plural = "unique values"
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["name", "digest"], name="enode_unique_value")]
        indexes = [
            models.Index(fields=["aggregate_root_id"], name="enode_unique_owner"),
            models.Index(
                fields=["changed_at"],
                name="enode_unique_unsettled",
                condition=~models.Q(claims={}) | ~models.Q(releases=[]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {bytes(self.digest).hex()[:12]} of {self.aggregate_root_id}"


class ReceivedCommand(models.Model):
    """A command that the API received with an ``Idempotency-Key``. The key cannot be used for another command."""

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
