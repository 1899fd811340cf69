"""What is measured is stored in kilowatt hours, as a text."""
