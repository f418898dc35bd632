"""Derives a small draft model from a target: drops layers, then distills on the target's own text."""
