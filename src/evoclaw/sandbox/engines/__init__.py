"""Sandbox engines: ways to run a command so that it reaches only what it may."""
