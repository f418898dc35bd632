"""What `tokenmill doctor` looks at on this machine."""
