"""The Debian package and the image, installed and run in roots of their own: `make packaging`."""
