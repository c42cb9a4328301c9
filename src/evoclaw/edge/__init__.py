"""Edge: the device's process. It connects, serves commands, and remembers what it did."""
