"""The simple methods, each in a small file that names its paper, all with the interface `base.Method`."""
