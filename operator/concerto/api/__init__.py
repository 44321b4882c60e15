"""Typed, frozen views of the custom resources and of the few core objects Concerto reads. No I/O."""
