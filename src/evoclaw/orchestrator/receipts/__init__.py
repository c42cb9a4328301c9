"""Receipts of devices: verified, stored and exported."""
