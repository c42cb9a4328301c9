"""What happens, for whoever looks: as it changes, and added up."""
