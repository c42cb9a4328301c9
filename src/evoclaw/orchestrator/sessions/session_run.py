"""A run of a session in this process: runs the loop and stores each record before the next step."""
