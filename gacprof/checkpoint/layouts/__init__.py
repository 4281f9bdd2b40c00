"""What names and shapes mean. No tensor data is read, and nothing depends on a folder's name."""
