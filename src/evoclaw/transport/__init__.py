"""Between machines: what is said on the wire, and the links that carry it."""
