"""Render a cell's Dockerfile and its build context."""
