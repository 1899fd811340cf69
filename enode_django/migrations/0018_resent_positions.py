from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0017_passed_over_types"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="resent_generation",
            field=models.BigIntegerField(null=True, verbose_name="resent generation"),
        ),
        migrations.AddField(
            model_name="subscription",
            name="resent_position",
            field=models.BigIntegerField(
                help_text="What follows from events below it has had an effect, or was sent again.",
                null=True,
                verbose_name="resent position",
            ),
        ),
    ]
