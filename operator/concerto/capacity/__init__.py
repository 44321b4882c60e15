"""The maths of capacity: smoothing, windows, subspace, signal, estimator. Arrays in, arrays out; no I/O, no clock."""
