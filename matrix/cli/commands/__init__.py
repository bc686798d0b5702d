"""What each `specmatrix` command does; `matrix.cli.app` holds their options and imports them when they are called."""
