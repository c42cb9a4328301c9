"""The fleet: which edges are online, which tools they have, and how calls reach them."""
