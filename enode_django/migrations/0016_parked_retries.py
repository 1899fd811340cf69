from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0015_subscriber_generations"),
    ]

    operations = [
        migrations.AddField(
            model_name="parkedevent",
            name="fingerprint",
            field=models.CharField(
                db_collation="C",
                db_default="",
                help_text="Of the code that has failed.",
                max_length=100,
                verbose_name="fingerprint",
            ),
        ),
        migrations.AddField(
            model_name="parkedevent",
            name="next_try_at",
            field=models.DateTimeField(
                help_text="Empty: only when somebody asks for it, or when the code has changed.",
                null=True,
                verbose_name="next try at",
            ),
        ),
    ]
