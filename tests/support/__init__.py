"""What tests share. Each module is named after what it gives: a fleet, a service, waiting."""
