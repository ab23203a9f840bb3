"""The methods to beat, each in a small file with its paper, all behind `base.Baseline`."""
