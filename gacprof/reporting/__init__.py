"""Results as people read them: on a terminal, as figures, and as one HTML page."""
