from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("enode_django", "0029_subscription_fingerprint")]

    operations = [
        migrations.AddField(
            model_name="rebuild",
            name="generations",
            field=models.JSONField(
                "generations", db_default={}, help_text="That of each shard whose erased events it does not have."
            ),
        ),
    ]
