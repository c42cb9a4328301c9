"""A2A, the Agent2Agent protocol: tasks over runs, for the HTTP service and for MQTT."""
