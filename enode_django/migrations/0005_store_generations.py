from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0004_snapshots"),
    ]

    operations = [
        migrations.CreateModel(
            name="StoreGeneration",
            fields=[
                ("generation", models.BigIntegerField(primary_key=True, serialize=False, verbose_name="generation")),
                (
                    "after_sequence",
                    models.BigIntegerField(
                        help_text="The streams that are stored later belong to it.", verbose_name="after sequence"
                    ),
                ),
                ("cluster", models.CharField(max_length=64, verbose_name="cluster")),
                ("begun_at", models.DateTimeField(verbose_name="begun at")),
            ],
            options={
                "verbose_name": "store generation",
                "verbose_name_plural": "store generations",
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="subscription",
            name="start_generation",
            field=models.BigIntegerField(db_default=0, verbose_name="start generation"),
        ),
        migrations.AddField(
            model_name="subscription",
            name="swept_generation",
            field=models.BigIntegerField(db_default=0, verbose_name="swept generation"),
        ),
    ]
