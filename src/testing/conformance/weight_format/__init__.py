"""The suite for weight formats."""
