"""Keys, grants, pairing, receipts: what one machine can prove to another."""
