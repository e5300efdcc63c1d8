"""Interactions, file formats, the catalogue of data sets, splits and synthetic data."""
