"""What is measured is stored in watt hours, as a number, with the place that it comes from."""
