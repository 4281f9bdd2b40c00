"""A dense model → a compressed one whose sizes the device at hand serves well."""
