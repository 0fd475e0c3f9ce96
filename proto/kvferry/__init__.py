"""kvferry: the contract between a vLLM engine and its sidecar (see kvferry.v1)."""
