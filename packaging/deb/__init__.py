"""Builds the Debian package from the libraries that requirements.lock pins. No root, no debhelper."""
