"""Running cells: from a cell to its record."""
