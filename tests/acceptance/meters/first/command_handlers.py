from __future__ import annotations

from enode_django import CommandContext, command_handler
from tests.acceptance.meters.commands import Measure
from tests.acceptance.meters.first.domain import Meter


@command_handler
def measure(command: Measure, context: CommandContext) -> None:
    meter = context.find(Meter)
    if meter is None:
        meter = Meter(command.aggregate_root_id)
        context.add(meter)
    context.set_result(meter.measure(command.amount))
