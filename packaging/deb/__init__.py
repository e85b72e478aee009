"""Builds the Debian package from the wheels that requirements.lock pins. No root, no debhelper."""
