"""The relatives."""
