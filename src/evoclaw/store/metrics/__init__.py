"""Figures: what runs and calls come to, folded from their records."""
