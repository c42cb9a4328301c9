"""What a stored run already did: numbers used, steering taken in, money and turns spent."""
