"""The proof with a real vLLM engine: `make e2e-vllm`, which is `python -m tests.e2e.run_e2e`.

`run_e2e` runs the scenarios: `main_job`, `parallel`, `outages` and `identity`, each built on
`proof`. `sandbox` builds the two containers, `pod` runs in the daemon's, `engine` in vLLM's;
`pod_client` and `engine_client` are their outsides. `inspection` looks at processes through /proc,
`step_times` at the engine's steps. `cpu_tiering` and `make_model` let vLLM's tiering run without a
GPU and without a downloaded model.
"""
