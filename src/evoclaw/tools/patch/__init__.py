"""The tool `apply_patch`: both forms of patches, all or nothing."""
