"""What devices signed, kept and handed out."""
