"""What each `specmatrix` command does; `matrix.cli` holds their options and imports them when they are called."""
