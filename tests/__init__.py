"""Tests; a package, so that they find each other's helpers by one name."""
