"""Statistics of timings: the fit of blocks, the judge, noise, periods. It knows no device."""
