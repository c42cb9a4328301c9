"""Egress from a sandbox to the network: a proxy outside, and a relay to it inside."""
