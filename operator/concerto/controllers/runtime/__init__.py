"""What every controller runs on: work queues, metrics, health, and the clock."""
