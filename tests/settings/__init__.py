"""Every key of the settings files has an observable effect, or is refused."""
