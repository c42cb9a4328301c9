"""What a run may use, counted before it is used: nothing is overspent, not even side by side."""
