"""Reconciles PredictiveHPAs."""
