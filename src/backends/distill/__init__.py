"""Makes a small draft model of a target: a head or a few layers, distilled on the target's text."""
