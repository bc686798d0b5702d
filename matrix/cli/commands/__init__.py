"""What each `specmatrix` command does; `specmatrix.cli` holds their options and imports them when they are called."""
