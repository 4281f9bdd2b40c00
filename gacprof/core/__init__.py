"""What every room stands on: points, errors, files, dtypes, and the fit of blocks."""
