"""Who comes in, and what people are asked and answer."""
