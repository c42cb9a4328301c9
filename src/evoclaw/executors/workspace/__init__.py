"""The files of a workspace that programs run by themselves: found, mounted read-only, refused."""
