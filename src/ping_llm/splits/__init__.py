"""Ways of splitting measurements, and the check that nothing leaks between the splits."""
