"""Channels: how people send messages to agents without the API, by webhook or MQTT."""
