"""Servers as subjects: SGLang's native API and OpenAI's, of a running server or of one that is started per cell."""
