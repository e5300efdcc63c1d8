"""The mathematics, centralised and pure: normalisation, item-item matrix, low-pass filter."""
