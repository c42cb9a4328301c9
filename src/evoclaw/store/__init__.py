"""Store: what must outlive a process."""
