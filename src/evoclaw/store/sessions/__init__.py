"""Sessions: conversations, their runs, records and questions, and their deletion."""
