"""Shows edges and agents to Home Assistant, over MQTT discovery."""
