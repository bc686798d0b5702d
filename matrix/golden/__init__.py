"""The reviewed resolution of every engine configuration."""
