import django.contrib.postgres.fields
from django.db import migrations, models

# A primary key cannot be altered to a composite one, so the rows move to a new table.
TAKE_OVER = """
    INSERT INTO enode_django_subscription
        (subscriber, shard, started_at, start_generation, start_position, swept_generation, swept_position)
    SELECT subscriber, 0, started_at, start_generation, start_position, swept_generation, swept_position
    FROM enode_django_formersubscription
"""
GIVE_BACK = """
    INSERT INTO enode_django_formersubscription
        (subscriber, started_at, start_generation, start_position, swept_generation, swept_position)
    SELECT subscriber, started_at, start_generation, start_position, swept_generation, swept_position
    FROM enode_django_subscription WHERE shard = 0
"""


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0005_store_generations"),
    ]

    operations = [
        migrations.CreateModel(
            name="Shard",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, editable=False, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("number", models.IntegerField(verbose_name="number")),
                ("epoch", models.BigIntegerField(verbose_name="epoch")),
                (
                    "buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.SmallIntegerField(), size=None, verbose_name="buckets"
                    ),
                ),
                ("recorded_at", models.DateTimeField(verbose_name="recorded at")),
            ],
            options={
                "verbose_name": "shard",
                "verbose_name_plural": "shards",
                "default_permissions": ("view",),
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="enode_shard_one_row")],
            },
        ),
        migrations.RenameModel("Subscription", "FormerSubscription"),
        migrations.CreateModel(
            name="Subscription",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "subscriber", "shard", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("subscriber", models.CharField(db_collation="C", max_length=255, verbose_name="subscriber")),
                ("shard", models.IntegerField(help_text="Its number.", verbose_name="shard")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("start_generation", models.BigIntegerField(db_default=0, verbose_name="start generation")),
                (
                    "start_position",
                    models.BigIntegerField(
                        help_text="What is stored below it is not handled.", verbose_name="start position"
                    ),
                ),
                ("swept_generation", models.BigIntegerField(db_default=0, verbose_name="swept generation")),
                (
                    "swept_position",
                    models.BigIntegerField(
                        help_text="What is stored below it was compared.", verbose_name="swept position"
                    ),
                ),
            ],
            options={
                "verbose_name": "subscription",
                "verbose_name_plural": "subscriptions",
                "default_permissions": ("view",),
            },
        ),
        migrations.RunSQL(TAKE_OVER, GIVE_BACK, hints={"model_name": "subscription"}),
        migrations.DeleteModel("FormerSubscription"),
    ]
