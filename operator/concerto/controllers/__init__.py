"""Controllers: they translate between the API server (`kube`) and the pure code."""
