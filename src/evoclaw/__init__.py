"""EvoClaw: one brain, many hands."""
