"""What one device multiplies: the products of a checkpoint on a rank, and how ranks share them."""
