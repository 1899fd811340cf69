"""The first edition stores measurements in kilowatt hours, as text."""
