"""Faces for other programs: what they can ask of this house."""
