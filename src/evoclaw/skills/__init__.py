"""Skills: folders with instructions for the model and programs that it may call as tools."""
