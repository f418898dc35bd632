"""The files of a model: JSON, the names of weight files, and safetensors."""
