"""Model files on this machine: the catalogue, downloads, verification, and what fits in memory."""
