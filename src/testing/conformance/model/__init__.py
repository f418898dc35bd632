"""The suite for implementations of models."""
