import django.db.models.functions.datetime
from django.db import migrations, models

# The rows stay where they are: only the index of the primary key is built anew.
WITH_GENERATION = """
    ALTER TABLE enode_django_checkpoint DROP CONSTRAINT enode_django_checkpoint_pkey,
        ADD PRIMARY KEY (subscriber, generation, aggregate_root_id)
"""
WITHOUT_GENERATION = """
    DELETE FROM enode_django_checkpoint AS known WHERE generation <> coalesce(
        (SELECT generation FROM enode_django_projectiongeneration AS now WHERE now.subscriber = known.subscriber), 0
    );
    ALTER TABLE enode_django_checkpoint DROP CONSTRAINT enode_django_checkpoint_pkey,
        ADD PRIMARY KEY (subscriber, aggregate_root_id)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0007_jobs"),
    ]

    operations = [
        migrations.CreateModel(
            name="ProjectionGeneration",
            fields=[
                (
                    "subscriber",
                    models.CharField(
                        db_collation="C",
                        max_length=255,
                        primary_key=True,
                        serialize=False,
                        verbose_name="subscriber",
                    ),
                ),
                ("generation", models.BigIntegerField(verbose_name="generation")),
            ],
            options={
                "verbose_name": "projection generation",
                "verbose_name_plural": "projection generations",
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="generation",
            field=models.BigIntegerField(
                db_default=0, help_text="Of the projection's tables.", verbose_name="generation"
            ),
        ),
        migrations.RunSQL(
            WITH_GENERATION,
            WITHOUT_GENERATION,
            state_operations=[
                migrations.AlterField(
                    model_name="checkpoint",
                    name="pk",
                    field=models.CompositePrimaryKey(
                        "subscriber",
                        "generation",
                        "aggregate_root_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
            ],
            hints={"model_name": "checkpoint"},
        ),
        migrations.CreateModel(
            name="Rebuild",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscriber", models.CharField(db_collation="C", max_length=255, verbose_name="subscriber")),
                ("generation", models.BigIntegerField(verbose_name="generation")),
                ("replaces", models.BigIntegerField(verbose_name="replaces")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("building", "Building"),
                            ("swapped", "Swapped"),
                            ("undone", "Undone"),
                            ("settled", "swapped or undone, for good"),
                            ("abandoned", "Abandoned"),
                        ],
                        default="building",
                        max_length=20,
                        verbose_name="state",
                    ),
                ),
                (
                    "tables",
                    models.JSONField(
                        default=dict, help_text="What they were like when they were made.", verbose_name="tables"
                    ),
                ),
                (
                    "migrations",
                    models.JSONField(
                        default=list, help_text="Those applied when it was swapped.", verbose_name="migrations"
                    ),
                ),
                (
                    "positions",
                    models.JSONField(
                        default=dict, help_text="Up to which all is in what it replaces.", verbose_name="positions"
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="started at"
                    ),
                ),
                ("swapped_at", models.DateTimeField(null=True, verbose_name="swapped at")),
            ],
            options={
                "verbose_name": "rebuild",
                "verbose_name_plural": "rebuilds",
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("subscriber", "generation"), name="enode_rebuild_generation")
                ],
            },
        ),
    ]
