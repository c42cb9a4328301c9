"""What an agent is: its definition, its prompt, its tools, its memory."""
