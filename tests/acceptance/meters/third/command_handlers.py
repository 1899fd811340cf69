from __future__ import annotations

from enode_django import CommandContext, command_handler
from tests.acceptance.meters.commands import Measure
from tests.acceptance.meters.third.domain import PowerMeter


@command_handler
def measure(command: Measure, context: CommandContext) -> None:
    meter = context.find(PowerMeter)
    if meter is None:
        meter = PowerMeter(command.aggregate_root_id)
        context.add(meter)
    context.set_result(meter.measure(int(command.amount * 1000)))
