"""The gate: the pure parts that judge whether a candidate may replace the current genome."""
