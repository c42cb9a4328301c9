"""Rules in TOML: what is allowed, asked about and denied, each with examples that prove it."""
