"""Encoder bundles that come with the package, as data."""
