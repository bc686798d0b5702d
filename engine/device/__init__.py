"""Ring 1: tensors without policy."""
