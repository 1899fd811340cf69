from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("bank", "0001_initial")]

    operations = [
        migrations.AlterModelOptions(
            name="accountsummary",
            options={
                "permissions": [("serve_customers", "Can serve customers at the counter")],
                "verbose_name_plural": "account summaries",
            },
        ),
    ]
