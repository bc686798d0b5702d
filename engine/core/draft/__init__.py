"""Draft algorithms, their depth and tree arithmetic."""
