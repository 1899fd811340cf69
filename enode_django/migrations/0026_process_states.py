import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0025_scheduled_commands"),
    ]

    operations = [
        migrations.CreateModel(
            name="ProcessState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscriber", models.CharField(db_collation="C", max_length=255, verbose_name="subscriber")),
                ("key", models.CharField(db_collation="C", max_length=255, verbose_name="key")),
                (
                    "state",
                    models.BinaryField(
                        db_default=b"", help_text="Packed; empty until it has started.", verbose_name="state"
                    ),
                ),
                (
                    "waiting",
                    models.JSONField(
                        db_default=[],
                        help_text="Id, aggregate root id, command id of each.",
                        verbose_name="waiting events",
                    ),
                ),
                (
                    "version",
                    models.BigIntegerField(
                        db_default=0, help_text="The number of events that it has handled.", verbose_name="version"
                    ),
                ),
                (
                    "changed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="changed at"
                    ),
                ),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended at")),
            ],
            options={
                "verbose_name": "process state",
                "verbose_name_plural": "process states",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at", None), _negated=True),
                        fields=["ended_at"],
                        name="enode_process_ended",
                    ),
                    models.Index(
                        condition=models.Q(("started_at", None)), fields=["changed_at"], name="enode_process_waits"
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("subscriber", "key"), name="enode_process_state")],
            },
        ),
    ]
