"""Authentication of callers, and approvals and questions for people."""
