"""The simple methods, each in a small file with its paper, all behind `base.Method`."""
