"""Rules in TOML: what is allowed, asked about or denied, each with examples that test it."""
