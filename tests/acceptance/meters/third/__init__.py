"""The third edition stores measurements in watt hours, as a number, with the place that they come from."""
