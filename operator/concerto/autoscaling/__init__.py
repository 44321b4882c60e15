"""Replica rules, forecasters and their backtest (pure)."""
