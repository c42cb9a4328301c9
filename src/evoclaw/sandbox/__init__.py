"""Where a command runs: sandbox engines, the workers inside them, egress to the network."""
