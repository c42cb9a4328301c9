"""The one way from a cage to the network: a proxy outside, and a relay to it inside."""
