"""Between machines: the wire messages, and the links that carry them."""
