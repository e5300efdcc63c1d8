"""Additions that nothing else imports: the Flower carrier, more protocols of summing."""
