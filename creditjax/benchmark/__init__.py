"""Side-by-side measurements: `speed` times estimators and kernels against yardsticks and installed peers."""
