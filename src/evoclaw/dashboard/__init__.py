"""The web page: plain files that read the public HTTP API, and nothing else."""
