"""The engine without a package: Landlock, seccomp, rlimits, and namespaces where allowed."""
