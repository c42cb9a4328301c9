"""SSH: the files and processes of another machine."""
