"""Governance: approvals, the budget ledger, rates, stops, tokens and devices."""
