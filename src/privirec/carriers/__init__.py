"""Carriers: transports that move bytes between a federation's server and its clients."""
