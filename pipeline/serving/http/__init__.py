"""The service over HTTP: routes, limits, documents."""
