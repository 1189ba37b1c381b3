"""What is about the paper: its numbers beside ours, verdicts on its claims, its figures."""
