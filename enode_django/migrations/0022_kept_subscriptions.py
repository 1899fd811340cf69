from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0021_event_types"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="kept_since",
            field=models.DateTimeField(
                help_text="Since when runprocessors starts although no code owns it.",
                null=True,
                verbose_name="kept since",
            ),
        ),
    ]
