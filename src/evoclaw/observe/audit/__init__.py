"""Who did what, where, and who allowed it: kept in a chain that shows when it was touched."""
