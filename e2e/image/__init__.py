"""Container images of the operator and of the agent: ``make image``.

Modules: `build` (which engine, which base, and the result), `wheels` (what the lock pins, downloaded), `tree` (a base
of Debian packages, for machines without a registry); ``install.py`` runs inside the build.
"""
