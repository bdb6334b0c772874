"""Slow, obvious float64 references for the estimators, written from the published formulas alone."""
