"""The edges: who is there, what they can do, and how they are asked."""
