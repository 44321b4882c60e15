"""NodeDeclaredFeatures."""
