"""Draft algorithms, draft depth, and tree arithmetic."""
