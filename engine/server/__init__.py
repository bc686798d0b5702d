"""The HTTP server: SGLang's native endpoints and OpenAI's, over one engine in its own thread."""
