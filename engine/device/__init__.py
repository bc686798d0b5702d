"""Ring 1: tensor code without scheduling decisions."""
