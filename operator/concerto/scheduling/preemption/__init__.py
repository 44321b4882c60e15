"""Room for a pod of higher priority by the eviction of pods of lower priority. Pure."""
