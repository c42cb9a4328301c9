"""The Agent Client Protocol (ACP): editors run sessions of this machine over stdio."""
