from django.db import migrations, models

import enode_django.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="EventStream",
            fields=[
                ("sequence", models.BigAutoField(primary_key=True, serialize=False, verbose_name="sequence")),
                (
                    "aggregate_root_type",
                    models.CharField(db_collation="C", max_length=255, verbose_name="aggregate root type"),
                ),
                (
                    "aggregate_root_id",
                    models.CharField(db_collation="C", max_length=255, verbose_name="aggregate root id"),
                ),
                (
                    "version",
                    models.BigIntegerField(help_text="Empty for a stored refusal.", null=True, verbose_name="version"),
                ),
                ("command_id", models.CharField(db_collation="C", max_length=255, verbose_name="command id")),
                ("command_type", models.CharField(db_collation="C", max_length=255, verbose_name="command type")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                (
                    "transaction_id",
                    enode_django.fields.TransactionIdField(
                        db_default=enode_django.fields.CurrentTransactionId(),
                        editable=False,
                        verbose_name="transaction id",
                    ),
                ),
                ("events", models.BinaryField(verbose_name="events")),
                ("metadata", models.BinaryField(verbose_name="metadata")),
            ],
            options={
                "verbose_name": "event stream",
                "verbose_name_plural": "event streams",
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("aggregate_root_id", "version"), name="enode_stream_version"),
                    models.UniqueConstraint(fields=("command_id", "aggregate_root_id"), name="enode_stream_command"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("version__isnull", True)),
                        fields=["created_at"],
                        name="enode_stream_refused_at",
                    ),
                ],
            },
        ),
    ]
