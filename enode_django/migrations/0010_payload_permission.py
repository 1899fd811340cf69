from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0009_operations"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="eventstream",
            options={
                "default_permissions": ("view",),
                "permissions": [("view_payload", "Can view the contents of event streams")],
                "verbose_name": "event stream",
                "verbose_name_plural": "event streams",
            },
        ),
    ]
