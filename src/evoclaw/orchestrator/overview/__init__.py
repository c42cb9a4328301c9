"""What happens in all runs: a feed of changes, and metrics."""
