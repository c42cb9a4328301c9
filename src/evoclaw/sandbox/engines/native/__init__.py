"""The engine that needs no package: Landlock, seccomp, limits, and namespaces where allowed."""
