"""What is made from a finished run: its report."""
