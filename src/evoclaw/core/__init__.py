"""Core: values, events, ports, the loop. No I/O."""
