"""Ways of dividing measurements, and the check that nothing leaks."""
