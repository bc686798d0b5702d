"""llama.cpp's server as a subject, in its own environment."""
