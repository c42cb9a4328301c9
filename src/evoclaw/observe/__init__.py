"""Who watches: sinks that keep, count and show what happened."""
