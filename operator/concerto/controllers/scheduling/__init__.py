"""The scheduling loop, placement records, bindings, profiles and reservations."""
